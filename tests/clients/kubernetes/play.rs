//! Three nodes of the `DaemonSet` as rendered, in containers of runc with its commands, variables, users, capabilities and volumes:
//! start, a change of the access file, drain and replacement. All share this host's network, so that 0.0.0.0 is the pod's
//! address; requests, probes of the kubelet, signals and volumes are the test's.

use super::Workshop;
use kennel_tests::{
    PATIENCE, eventually_async, must,
    postgres::Postgres,
    programs,
    runc::{Container, bound, seccomp, usual_mounts},
    shell::{run_to_end, text},
};
use nix::unistd::{Gid, Uid, chown};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};
use tempfile::TempDir;

/// Names and addresses of the nodes.
const NODES: [(&str, &str); 3] = [
    ("node-a", "127.0.7.1"),
    ("node-b", "127.0.7.2"),
    ("node-c", "127.0.7.3"),
];
/// Clients: one of the access file, and one that a change of it adds.
const CLIENTS: [&str; 2] = ["control-plane", "auditor"];

/// Objects of a rendering, and what they name: nodes with their directories, Secrets, `ConfigMaps`, a database.
pub(super) struct Cluster<'a> {
    objects: &'a [Value],
    dir: TempDir,
    postgres: Postgres,
}

/// A pod of the `DaemonSet` on a node.
struct Pod<'a> {
    cluster: &'a Cluster<'a>,
    node: (&'static str, &'static str),
    /// Its emptyDirs and bundles.
    dir: PathBuf,
    main: Container,
}

fn mkdir(path: &Path, mode: u32) {
    must("mkdir", fs::create_dir_all(path));
    must(
        "chmod",
        fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    );
}

impl<'a> Cluster<'a> {
    pub(super) async fn new(objects: &'a [Value]) -> Self {
        let dir = must(
            "a directory",
            tempfile::Builder::new().prefix("kennel-cluster-").tempdir(),
        );
        mkdir(dir.path(), 0o755);
        let postgres = Postgres::start().await;
        mkdir(postgres.socket_dir(), 0o755);
        let cluster = Self {
            objects,
            dir,
            postgres,
        };
        for words in [
            &["init", "certs"][..],
            &["node", "certs", "nodes"],
            &["client", "certs", CLIENTS[0]],
            &["client", "certs", CLIENTS[1]],
        ] {
            let mut certs = Command::new(programs::kennel());
            certs
                .current_dir(cluster.dir.path())
                .arg("certs")
                .args(words);
            let done = run_to_end(certs, PATIENCE).await;
            assert!(done.status.success(), "{done:?}");
        }
        let files = |names: &[&str]| -> Vec<(String, String)> {
            let read = |name: &&str| must(name, fs::read_to_string(cluster.certificate(name)));
            names
                .iter()
                .map(|name| ((*name).to_owned(), read(name)))
                .collect()
        };
        let url = format!("{}\n", cluster.postgres.url_in(Path::new("/pg")));
        cluster.mount("kennel-store", &[("url".to_owned(), url)]);
        cluster.mount(
            "kennel-tls",
            &files(&["ca.pem", "crl.pem", "nodes.pem", "nodes-key.pem"]),
        );
        cluster.mount("kennel-authority", &files(&["ca-key.pem", "issued.toml"]));
        for map in objects
            .iter()
            .filter(|object| object["kind"] == "ConfigMap")
        {
            let name = map["metadata"]["name"].as_str().expect("a name");
            cluster.mount(name, &entries(&map["data"]));
        }
        cluster
    }

    fn certificate(&self, name: &str) -> PathBuf {
        self.dir.path().join("certs").join(name)
    }

    /// Writes the files of a Secret or `ConfigMap` as the kubelet does, which replaces all at once: each is a link into a
    /// directory of a link.
    fn mount(&self, name: &str, files: &[(String, String)]) {
        let volume = self.dir.path().join("volumes").join(name);
        mkdir(&volume, 0o755);
        let version = format!("..{}", must("list", fs::read_dir(&volume)).count());
        mkdir(&volume.join(&version), 0o755);
        for (file, text) in files {
            let path = volume.join(&version).join(file);
            must("write", fs::write(&path, text));
            must("chown", chown(&path, None, Some(Gid::from_raw(10_001))));
            must(
                "chmod",
                fs::set_permissions(&path, fs::Permissions::from_mode(0o440)),
            );
            let _ = symlink(Path::new("..data").join(file), volume.join(file));
        }
        must("link", symlink(version, volume.join("..fresh")));
        must(
            "rename",
            fs::rename(volume.join("..fresh"), volume.join("..data")),
        );
    }

    fn pod_spec(&self) -> &Value {
        let set = self
            .objects
            .iter()
            .find(|object| object["kind"] == "DaemonSet");
        &set.expect("it has one")["spec"]["template"]["spec"]
    }

    /// Starts a pod on a node: its init containers one after the other, then its container.
    async fn start(&'a self, node: (&'static str, &'static str), number: u32) -> Pod<'a> {
        let dir = self.dir.path().join(format!("{}-{number}", node.0));
        mkdir(&dir, 0o755);
        let spec = self.pod_spec();
        let start = |container: &Value| {
            let name = container["name"].as_str().expect("a name");
            let bundle = dir.join(name);
            mkdir(&bundle, 0o755);
            let config = self.config(node, &dir, container, &bundle.join("root"));
            let unique = self
                .dir
                .path()
                .file_name()
                .expect("it has one")
                .to_string_lossy();
            let name = format!("{unique}-{}-{number}-{name}", node.0);
            Container::start(name, self.dir.path().join("state"), &bundle, &config)
        };
        for container in spec["initContainers"].as_array().into_iter().flatten() {
            let done = start(container).end();
            assert!(done.status.success(), "{container}: {done:?}");
        }
        let main = start(&spec["containers"][0]);
        let pod = Pod {
            cluster: self,
            node,
            dir,
            main,
        };
        pod.is_ready().await;
        pod
    }

    /// Returns the host's directory of a volume.
    fn volume(&self, node: &str, pod: &Path, name: &str) -> PathBuf {
        let volumes = self.pod_spec()["volumes"].as_array().expect("volumes");
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == name)
            .expect("it is there");
        let named = volume["configMap"]["name"].as_str();
        if let Some(named) = named.or(volume["secret"]["secretName"].as_str()) {
            return self.dir.path().join("volumes").join(named);
        }
        if let Some(path) = volume["hostPath"]["path"].as_str() {
            assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate");
            let host = self
                .dir
                .path()
                .join(node)
                .join(path.trim_start_matches('/'));
            if !host.exists() {
                mkdir(&host, 0o755);
            }
            return host;
        }
        assert!(volume["emptyDir"].is_object(), "{volume}");
        let path = pod.join("volumes").join(name);
        if !path.exists() {
            mkdir(&path, 0o2777);
            let group = self.pod_spec()["securityContext"]["fsGroup"]
                .as_u64()
                .expect("a group");
            must(
                "chown",
                chown(&path, Some(Uid::from_raw(0)), Some(gid(group))),
            );
        }
        path
    }

    /// Returns what a runtime is given for a container of the pod.
    fn config(
        &self,
        (node, ip): (&str, &str),
        pod: &Path,
        container: &Value,
        root: &Path,
    ) -> Value {
        let kennel = programs::kennel();
        let mut mounts = usual_mounts(kennel.parent().expect("a directory"));
        mounts.push(bound(self.postgres.socket_dir(), "/pg", &["rbind", "rw"]));
        for mount in container["volumeMounts"].as_array().expect("mounts") {
            let at = mount["mountPath"].as_str().expect("a path");
            let from = self.volume(node, pod, mount["name"].as_str().expect("a name"));
            let access = if mount["readOnly"] == true {
                "ro"
            } else {
                "rw"
            };
            mounts.push(bound(&from, at, &["rbind", access]));
        }
        for mount in &mounts {
            let at = mount["destination"].as_str().expect("a path");
            mkdir(&root.join(at.trim_start_matches('/')), 0o755);
        }
        let all = &self.pod_spec()["securityContext"];
        let own = &container["securityContext"];
        let number = |name: &str| own[name].as_u64().or(all[name].as_u64());
        let user = number("runAsUser").expect("a user");
        assert!(
            user != 0 || own["runAsNonRoot"] == false,
            "root by mistake: {container}"
        );
        let added = own["capabilities"]["add"].as_array().into_iter().flatten();
        let added: Vec<String> = added
            .map(|name| format!("CAP_{}", name.as_str().expect("a name")))
            .collect();
        let variables = variables(container, (node, ip));
        let words = container["command"].as_array().expect("a command").iter();
        let words: Vec<String> = words
            .map(|word| expanded(word.as_str().expect("a word"), &variables))
            .collect();
        let mut env = vec!["PATH=/usr/bin:/bin:/kennel".to_owned()];
        env.extend(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        let capabilities: Vec<&str> = added.iter().map(String::as_str).collect();
        let namespaces = ["pid", "ipc", "uts", "mount"];
        json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": number("runAsGroup"), "additionalGids": [all["fsGroup"]]},
                "args": words,
                "env": env,
                "cwd": "/",
                "noNewPrivileges": own["allowPrivilegeEscalation"] == false,
                "capabilities": {"bounding": added, "effective": added, "permitted": added},
            },
            "root": {"path": root, "readonly": own["readOnlyRootFilesystem"]},
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces.map(|kind| json!({"type": kind})),
                "seccomp": seccomp(&capabilities),
            }
        })
    }

    /// Runs a command as a client of the cluster.
    async fn kennel(&self, client: &str, ip: &str, words: &[&str]) -> Output {
        let mut kennel = Command::new(programs::kennel());
        // Containers also have `/`: commands start in their caller's working directory.
        kennel.current_dir("/").env("HOME", self.dir.path());
        kennel.env("KENNEL_SERVER", format!("tcp://{ip}:7443"));
        kennel.env("KENNEL_TLS_CA", self.certificate("ca.pem"));
        kennel.env(
            "KENNEL_TLS_CERT",
            self.certificate(&format!("{client}.pem")),
        );
        kennel.env(
            "KENNEL_TLS_KEY",
            self.certificate(&format!("{client}-key.pem")),
        );
        kennel.args(words).stdin(std::process::Stdio::null());
        run_to_end(kennel, PATIENCE).await
    }

    /// As [`Self::kennel`]; returns what it prints.
    async fn answer(&self, ip: &str, words: &[&str]) -> String {
        let done = self.kennel(CLIENTS[0], ip, words).await;
        assert!(done.status.success(), "{words:?} at {ip}: {done:?}");
        text(&done)
    }
}

fn gid(number: u64) -> Gid {
    Gid::from_raw(u32::try_from(number).expect("a group"))
}

fn entries(map: &Value) -> Vec<(String, String)> {
    let entries = map.as_object().expect("a map").iter();
    entries
        .map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned()))
        .collect()
}

/// Returns the variables of a container; each may name those before it.
fn variables(container: &Value, (node, ip): (&str, &str)) -> HashMap<String, String> {
    let mut variables = HashMap::new();
    for variable in container["env"].as_array().into_iter().flatten() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("status.podIP") => ip.to_owned(),
            Some("spec.nodeName") => node.to_owned(),
            Some(other) => panic!("{other}"),
            None => expanded(variable["value"].as_str().expect("text"), &variables),
        };
        let value = value.replace("0.0.0.0", ip);
        variables.insert(variable["name"].as_str().expect("a name").to_owned(), value);
    }
    variables
}

/// Replaces `$(NAME)`.
fn expanded(text: &str, variables: &HashMap<String, String>) -> String {
    variables
        .iter()
        .fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("$({name})"), value)
        })
}

/// Returns the status line of an answer to GET.
fn get(ip: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect((ip, 8080)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.lines().next()?.to_owned())
}

impl Pod<'_> {
    async fn is_ready(&self) {
        for probe in ["startupProbe", "readinessProbe"] {
            let container = &self.cluster.pod_spec()["containers"][0];
            let path = container[probe]["httpGet"]["path"]
                .as_str()
                .expect("a path");
            eventually_async(path, PATIENCE, || async {
                get(self.node.1, path).filter(|status| status.contains(" 200 "))
            })
            .await;
        }
    }

    /// Returns the pid of its first process.
    fn pid(&self) -> u64 {
        let state = must("runc", self.main.runc(&["state"], &[]).output());
        let state: Value = must("JSON", serde_json::from_slice(&state.stdout));
        state["pid"].as_u64().expect("a pid")
    }

    /// Ends it as the kubelet does, and removes its emptyDirs.
    async fn delete(self) {
        let container = &self.cluster.pod_spec()["containers"][0];
        let hook = container["lifecycle"]["preStop"]["exec"]["command"].as_array();
        let words: Vec<&str> = hook
            .expect("a hook")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let done = run_to_end(self.main.runc(&["exec"], &words), PATIENCE).await;
        assert!(done.status.success(), "{words:?}: {done:?}");
        self.main.stop();
        let done = self.main.end();
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        must("remove", fs::remove_dir_all(&self.dir));
    }
}

/// Plays a rendering. `is_kept`: a pod's successor has its data.
pub(super) async fn play(workshop: &Workshop, name: &str, is_kept: bool) {
    let objects = workshop.judged(name).await;
    let objects: Vec<Value> = objects.into_iter().map(|judged| judged.object).collect();
    let cluster = Cluster::new(&objects).await;
    let mut pods = Vec::new();
    for node in NODES {
        pods.push(cluster.start(node, 1).await);
    }
    for (_, ip) in NODES {
        for (node, _) in NODES {
            let words = ["run", "--node", node, "--", "sh", "-c", "id -u"];
            let printed = cluster.answer(ip, &words).await;
            assert_eq!(printed, "10001", "{node} at {ip}");
        }
    }
    access_changes(&cluster, &pods).await;
    // The node records how a run ends at the drain's deadline.
    let ip = NODES[0].1;
    let script = "trap 'echo ended; exit 9' INT TERM; echo started; while :; do sleep 0.1; done";
    let spawned = cluster
        .answer(ip, &["spawn", "--node", "node-b", "--", "sh", "-c", script])
        .await;
    let run = spawned.trim();
    eventually_async("it has started", PATIENCE, || async {
        let printed = cluster.answer(ip, &["logs", run]).await;
        printed.contains("started").then_some(())
    })
    .await;
    pods.remove(1).delete().await;
    let waited = cluster.kennel(CLIENTS[0], ip, &["wait", run]).await;
    assert_eq!(waited.status.code(), Some(9), "{waited:?}");
    pods.push(cluster.start(NODES[1], 2).await);
    let nodes = cluster.answer(ip, &["nodes", "-o", "name"]).await;
    let mut nodes: Vec<&str> = nodes.lines().collect();
    nodes.sort_unstable();
    assert_eq!(nodes, NODES.map(|(name, _)| name), "{name}");
    let words = ["run", "--node", "node-b", "--", "echo", "back"];
    assert_eq!(cluster.answer(ip, &words).await, "back");
    if is_kept {
        assert_eq!(cluster.answer(ip, &["logs", run]).await, "started\nended");
    }
    for pod in pods {
        pod.delete().await;
    }
}

/// A change of the access file reaches each pod, and replaces none.
async fn access_changes(cluster: &Cluster<'_>, pods: &[Pod<'_>]) {
    let before: Vec<u64> = pods.iter().map(Pod::pid).collect();
    let refused = cluster.kennel(CLIENTS[1], NODES[0].1, &["ps"]).await;
    assert!(!refused.status.success(), "{refused:?}");
    let access = |object: &&Value| object["data"]["access.toml"].is_string();
    let map = cluster.objects.iter().find(access).expect("it has one");
    let mut files = entries(&map["data"]);
    for (name, text) in &mut files {
        if name == "access.toml" {
            text.push_str(
                "\n[[principal]]\nname = \"spiffe://kennel/auditor\"\nrole = \"viewer\"\n",
            );
        }
    }
    cluster.mount(map["metadata"]["name"].as_str().expect("a name"), &files);
    for (_, ip) in NODES {
        eventually_async("the access file is read", PATIENCE, || async {
            let asked = cluster.kennel(CLIENTS[1], ip, &["ps"]).await;
            asked.status.success().then_some(())
        })
        .await;
    }
    assert_eq!(before, pods.iter().map(Pod::pid).collect::<Vec<_>>());
}
