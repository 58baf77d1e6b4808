//! The manifests, rendered by kustomize and Helm, decoded by the types of three versions of Kubernetes, judged by the rules of pod
//! security admission, and played.

mod play;

use crate::pages::shell;
use kennel_tests::{
    must,
    programs::{kennel, repository},
    shell::{run_to_end, text},
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// Of `k8s.io/api`: Kubernetes 1.33, 1.35 and 1.37. The last one is that of Helm, so that both share what is compiled.
const VERSIONS: [&str; 3] = ["v0.33.0", "v0.35.0", "v0.37.0"];
const RENDER: &str =
    "helm.sh/helm/v3@v3.22.0 sigs.k8s.io/kustomize/api@v0.21.1 sigs.k8s.io/kustomize/kyaml@v0.21.1";
/// Judges by the rules of all versions up to its own.
const JUDGE: &str =
    "k8s.io/pod-security-admission@v0.37.0 k8s.io/api@v0.37.0 k8s.io/apimachinery@v0.37.0";
/// The newest one that goes with the oldest of these versions of Kubernetes.
const OPERATOR: &str =
    "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring@v0.82.0";
/// A cold build on a busy machine.
const BUILD_PATIENCE: Duration = Duration::from_mins(12);

/// One rendering: a name, what is rendered, and the objects that come of it.
struct Case {
    name: &'static str,
    of: Of,
    objects: &'static [&'static str],
}

enum Of {
    /// A base, with these components.
    Base(&'static str, &'static [&'static str]),
    /// A chart, with these values.
    Chart(&'static str, &'static str),
}

const CASES: [Case; 11] = [
    Case {
        name: "sidecar",
        of: Of::Base("sidecar", &[]),
        objects: &["Pod agent", "ConfigMap kennel-access"],
    },
    Case {
        name: "init",
        of: Of::Base("init", &[]),
        objects: &["Deployment agent"],
    },
    Case {
        name: "daemonset",
        of: Of::Base("daemonset", &[]),
        objects: &[
            "Namespace kennel",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
            "ConfigMap kennel-access",
        ],
    },
    Case {
        name: "daemonset-on-node",
        of: Of::Base("daemonset", &["data-on-node", "pod-monitor"]),
        objects: &[
            "Namespace kennel",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
            "ConfigMap kennel-access",
            "PodMonitor kennel",
        ],
    },
    Case {
        name: "sidecar-whole",
        of: Of::Base("sidecar", &["network-policy", "pod-monitor"]),
        objects: &[
            "Pod agent",
            "ConfigMap kennel-access",
            "NetworkPolicy agent",
            "PodMonitor kennel",
        ],
    },
    Case {
        name: "init-whole",
        of: Of::Base(
            "init",
            &["network-policy", "disruption-budget", "pod-monitor"],
        ),
        objects: &[
            "Deployment agent",
            "NetworkPolicy agent",
            "PodDisruptionBudget agent",
            "PodMonitor kennel",
        ],
    },
    Case {
        name: "daemonset-whole",
        of: Of::Base("daemonset", &["pod-monitor"]),
        objects: &[
            "Namespace kennel",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
            "ConfigMap kennel-access",
            "PodMonitor kennel",
        ],
    },
    Case {
        name: "chart-daemonset",
        of: Of::Chart("kennel", CHART_DAEMONSET),
        objects: &[
            "ConfigMap kennel",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
            "PodMonitor kennel",
        ],
    },
    Case {
        name: "chart-daemonset-on-node",
        of: Of::Chart("kennel", CHART_ON_NODE),
        objects: &[
            "ConfigMap kennel",
            "DaemonSet kennel",
            "NetworkPolicy kennel",
        ],
    },
    Case {
        name: "chart-init",
        of: Of::Chart(
            "kennel",
            "shape: init\npodDisruptionBudget: {enabled: true}\n",
        ),
        objects: &[
            "ConfigMap kennel",
            "Deployment kennel",
            "PodDisruptionBudget kennel",
            "NetworkPolicy kennel",
        ],
    },
    Case {
        name: "chart-sidecar",
        of: Of::Chart("agent", "replicas: 2\n"),
        objects: &["ConfigMap kennel", "Deployment kennel"],
    },
];

/// Data on the node, and 3 s for a drain.
const CHART_ON_NODE: &str =
    "data: {hostPath: /var/lib/kennel}\nterminationGracePeriodSeconds: 18\n";
/// 1 s for a drain.
const CHART_PLAIN: &str = "terminationGracePeriodSeconds: 16\n";

/// Every part that is off or empty by default.
const CHART_DAEMONSET: &str = r#"
settings: {default_grace: ["20s", "terminal=2s"], node_lease: 60s, retain_runs: 7}
image: {digest: "sha256:0000000000000000000000000000000000000000000000000000000000000000"}
imagePullSecrets: [{name: pull}]
env: [{name: OTEL_EXPORTER_OTLP_ENDPOINT, value: "http://collector:4317"}]
volumes: [{name: work, emptyDir: {}}]
volumeMounts: [{name: work, mountPath: /work}]
podAnnotations: {a: b}
podLabels: {c: d}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{operator: Exists}]
affinity: {nodeAffinity: {}}
priorityClassName: system-node-critical
metrics: {enabled: true, from: [{namespaceSelector: {}}], podMonitor: {enabled: true, labels: {release: x}}}
networkPolicy: {ingress: [{from: [{podSelector: {}}], ports: [{port: grpc}]}]}
"#;

/// Values that the chart refuses, and what it says.
const REFUSED: [(&str, &str); 8] = [
    ("shape: sidecar", "/shape"),
    ("daemonst: {}", "daemonst"),
    ("settings: {listen: 'tcp:0.0.0.0:1'}", "listen"),
    ("runAs: {user: 0}", "/runAs/user"),
    ("data: {hostPath: here}", "/data/hostPath"),
    ("shape: init\ndata: {hostPath: /here}", "/shape"),
    ("podDisruptionBudget: {enabled: true}", "/shape"),
    ("metrics: {podMonitor: {enabled: true}}", "/metrics/enabled"),
];

/// An object, and what pod security admission says of its pods; of a namespace the level that it enforces.
struct Judged {
    object: Value,
    level: String,
    why: String,
}

/// A directory with a copy of the manifests, and the programs that render, decode and judge.
struct Workshop(TempDir);

impl Workshop {
    async fn new() -> Self {
        let made = Self(must("a directory", tempfile::tempdir()));
        let deploy = repository().join("deploy/kubernetes");
        let programs = repository().join("tests/clients/kubernetes");
        let script = format!(
            "cp -r '{}' deploy; for program in render decode judge; do cp -r '{}'/$program .; done; \
             cd render; go mod init render; go get {RENDER}; go mod tidy; go build -o ../renders .; \
             cd ../judge; go mod init judge; go get {JUDGE}; go mod tidy; go build -o ../judges .",
            deploy.display(),
            programs.display(),
        );
        made.must_run(&script).await;
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        must("write", fs::write(self.path(name), text));
    }

    /// What a script prints, or the errors that it ends with.
    async fn run(&self, script: &str) -> Result<String, String> {
        let done = run_to_end(shell(self.0.path(), script), BUILD_PATIENCE).await;
        if done.status.success() {
            return Ok(text(&done));
        }
        Err(String::from_utf8_lossy(&done.stderr).into_owned())
    }

    async fn must_run(&self, script: &str) -> String {
        let done = self.run(script).await;
        done.unwrap_or_else(|errors| panic!("{script}: {errors}"))
    }

    /// Renders into NAME.yaml.
    async fn render(&self, name: &str, of: &Of) -> Result<String, String> {
        let script = match of {
            Of::Base(base, components) => {
                let component = |name: &&str| format!("../deploy/components/{name}");
                let components: Vec<_> = components.iter().map(component).collect();
                let components = components.join(", ");
                let text = format!("resources: [../deploy/{base}]\ncomponents: [{components}]\n");
                must("mkdir", fs::create_dir_all(self.path(name)));
                self.write(&format!("{name}/kustomization.yaml"), &text);
                format!("./renders kustomize {name} > {name}.yaml")
            }
            Of::Chart(chart, values) => {
                self.write(&format!("{name}-values.yaml"), values);
                format!("./renders helm deploy/helm/{chart} {name}-values.yaml > {name}.yaml")
            }
        };
        self.run(&script).await
    }

    /// Judges NAME.yaml.
    async fn judged(&self, name: &str) -> Vec<Judged> {
        let lines = self.must_run(&format!("./judges {name}.yaml")).await;
        let judged = |line: &str| {
            let mut value: Value = must("JSON", serde_json::from_str(line));
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Judged {
                level: text(&value["level"]),
                why: text(&value["why"]),
                object: value["object"].take(),
            }
        };
        lines.lines().map(judged).collect()
    }

    /// The program that decodes, by the types of this version.
    async fn build_decoder(&self, version: &str) {
        let script = format!(
            "cd decode; rm -f go.mod go.sum; go mod init decode; \
             go get k8s.io/api@{version} k8s.io/apimachinery@{version} {OPERATOR}; \
             go mod tidy; go build -o ../decodes ."
        );
        self.must_run(&script).await;
    }

    /// Renders and decodes a text in which one word of a manifest is another.
    async fn with_fault(&self, file: &str, of: &Of, (word, fault): (&str, &str)) -> String {
        let path = self.path("deploy").join(file);
        let whole = must("read", fs::read_to_string(&path));
        assert!(whole.contains(word), "{word} in {file}");
        must("write", fs::write(&path, whole.replace(word, fault)));
        let done = match self.render("broken", of).await {
            Ok(_) => self.run("./decodes broken.yaml").await,
            Err(errors) => Err(errors),
        };
        must("write", fs::write(&path, whole));
        done.expect_err(fault)
    }
}

// promise: S-23, S-23b, S-23a
#[tokio::test(flavor = "multi_thread")]
async fn manifests_fit_three_versions_of_kubernetes() {
    let workshop = Workshop::new().await;
    for Case { name, of, .. } in &CASES {
        must(name, workshop.render(name, of).await);
    }
    for version in VERSIONS {
        workshop.build_decoder(version).await;
        for Case { name, objects, .. } in &CASES {
            let decoded = workshop.must_run(&format!("./decodes {name}.yaml")).await;
            let decoded: Vec<&str> = decoded.lines().collect();
            assert_eq!(
                decoded.len(),
                objects.len(),
                "{version} {name}: {decoded:?}"
            );
            for object in *objects {
                // kustomize appends a hash to generated names.
                let is_there = decoded.iter().any(|found| found.starts_with(object));
                assert!(is_there, "{version} {name}: {object} in {decoded:?}");
            }
        }
    }
    // Misspelled fields fail the check.
    for (file, of, words) in [
        (
            "sidecar/pod.yaml",
            Of::Base("sidecar", &[]),
            ("readOnlyRootFilesystem", "readOnlyRootFileSystem"),
        ),
        (
            "components/pod-monitor/pod-monitor.yaml",
            Of::Base("init", &["pod-monitor"]),
            ("podMetricsEndpoints", "podMetricEndpoints"),
        ),
        (
            "helm/kennel/templates/daemonset.yaml",
            Of::Chart("kennel", "{}"),
            ("updateStrategy:", "updateStrategie:"),
        ),
        (
            "helm/kennel/templates/pod-monitor.yaml",
            Of::Chart("kennel", CHART_DAEMONSET),
            ("interval:", "every:"),
        ),
    ] {
        let errors = workshop.with_fault(file, &of, words).await;
        assert!(errors.contains(words.1.trim_end_matches(':')), "{errors}");
    }
    pod_security_lets_pods_in(&workshop).await;
    chart_refuses_wrong_values(&workshop).await;
    server_takes_settings_of_the_chart(&workshop).await;
}

/// Every pod is restricted, except those with data on the node; the namespaces enforce what their pods are. No rollout begins
/// by itself, and each container says what it needs.
async fn pod_security_lets_pods_in(workshop: &Workshop) {
    for Case { name, .. } in &CASES {
        let is_on_node = name.ends_with("on-node");
        let wanted = if is_on_node {
            "privileged"
        } else {
            "restricted"
        };
        for Judged { object, level, why } in workshop.judged(name).await {
            let kind = object["kind"].as_str().expect("a kind");
            if !["Namespace", "Pod", "Deployment", "DaemonSet"].contains(&kind) {
                continue;
            }
            assert_eq!(level, wanted, "{name} {kind}: {why}");
            let pod = if kind == "Pod" {
                &object["spec"]
            } else {
                &object["spec"]["template"]["spec"]
            };
            for list in ["initContainers", "containers"] {
                for container in pod[list].as_array().into_iter().flatten() {
                    // The agent container with this image is the user's.
                    let is_ours = container["image"] != "registry.example/agent:0.1.0";
                    assert!(
                        !is_ours || container["resources"]["limits"].is_object(),
                        "{container}"
                    );
                }
            }
            assert!(kind != "DaemonSet" || object["spec"]["updateStrategy"]["type"] == "OnDelete");
        }
    }
    let fault = ("runAsNonRoot: true", "runAsNonRoot: false");
    let path = workshop.path("chart-init.yaml");
    let rendered = must("read", fs::read_to_string(&path));
    workshop.write("rooted.yaml", &rendered.replace(fault.0, fault.1));
    let judged = workshop.judged("rooted").await;
    let rooted = judged
        .iter()
        .find(|judged| judged.object["kind"] == "Deployment");
    let rooted = rooted.expect("it is there");
    assert_eq!(rooted.level, "baseline");
    assert!(rooted.why.contains("runAsNonRoot"), "{}", rooted.why);
}

// promise: S-23c, S-23d
#[tokio::test(flavor = "multi_thread")]
async fn daemonset_pods_start_drain_and_are_replaced() {
    let workshop = Workshop::new().await;
    let on_node = Of::Chart("kennel", CHART_ON_NODE);
    must("render", workshop.render("on-node", &on_node).await);
    play::play(&workshop, "on-node", true).await;
    let plain = Of::Chart("kennel", CHART_PLAIN);
    must("render", workshop.render("plain", &plain).await);
    play::play(&workshop, "plain", false).await;
}

async fn chart_refuses_wrong_values(workshop: &Workshop) {
    for (values, named) in REFUSED {
        let chart = Of::Chart("kennel", values);
        let refused = workshop.render("refused", &chart).await;
        let errors = refused.expect_err(values);
        assert!(
            errors.contains("schema") && errors.contains(named),
            "{errors}"
        );
    }
    let unnamed = Of::Chart("agent", "kennel: {sidecar: {access: ''}}");
    let refused = workshop.render("refused", &unnamed).await;
    let errors = refused.expect_err("a sidecar that no neighbour may call");
    assert!(errors.contains("sidecar.access"), "{errors}");
}

/// The settings of the chart are a configuration file that the server checks, names and values.
async fn server_takes_settings_of_the_chart(workshop: &Workshop) {
    let check = |name: &str| {
        let rendered = workshop.path(&format!("{name}.yaml"));
        let file = workshop.path(&format!("{name}.toml"));
        must("write", fs::write(&file, settings_in(&rendered)));
        let mut command = Command::new(kennel());
        command.args(["config", "show", "--origin", "--config"]);
        command.arg(file).env("HOME", workshop.0.path());
        run_to_end(command, BUILD_PATIENCE)
    };
    let shown = check("chart-daemonset").await;
    assert!(shown.status.success(), "{shown:?}");
    let shown = text(&shown);
    for line in [
        "default_grace = \"20s,terminal=2s\"  # file",
        "node_lease = \"60s\"  # file",
        "retain_runs = \"7\"  # file",
        "retain_bytes = \"15GiB\"  # file",
    ] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    let unknown = Of::Chart("kennel", "settings: {orphan_tll: 10s}");
    must("render", workshop.render("unknown", &unknown).await);
    let refused = check("unknown").await;
    let errors = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && errors.contains("did you mean orphan_ttl?"),
        "{errors}"
    );
}

/// The text of `kennel.toml` in a rendered manifest.
fn settings_in(rendered: &Path) -> String {
    let whole = must("read", fs::read_to_string(rendered));
    let (_, text) = whole.split_once("  kennel.toml: |\n").expect("it has one");
    let lines = text.lines().map_while(|line| line.strip_prefix("    "));
    lines.flat_map(|line| [line, "\n"]).collect()
}
