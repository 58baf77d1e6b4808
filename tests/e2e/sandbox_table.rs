//! System calls of a command in a sandbox on Kennel's own places and on the system: none changes anything, and none
//! meets Kennel's.

use crate::sandbox::{printed, sandboxed};
use kennel_proto::pb::{self, CoverageGapKind, SeccompProfile};
use kennel_tests::{
    Kennel, Options, PATIENCE, RunExt, User, argv, cases, eventually, must, net::must_succeed, sh,
    shell::kennel_in,
};
use nix::unistd::Uid;
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Prints an attempt a line.
const ATTEMPTS: &str = include_str!("sandbox_table.py");
/// Fewest kinds of changes that it tries.
const CHANGES_MIN: usize = 40;

/// A service with private places of each kind, outside of its data directory.
struct Served {
    kennel: Kennel,
    own: TempDir,
}

impl Served {
    async fn start(user: User) -> Self {
        let own = tempfile::Builder::new().prefix("kennel-own-").tempdir();
        let own = own.expect("a directory");
        let certs = async |words: &[&str]| {
            let words: Vec<&str> = ["certs"].iter().chain(words).copied().collect();
            must_succeed(&kennel_in(own.path(), &words).await)
        };
        drop(certs(&["init", "ca"]).await);
        let access = certs(&["server", "ca", "127.0.0.1"]).await;
        let path = |name: &str| own.path().join(name).display().to_string();
        fs::write(path("access.toml"), access).expect("own directory");
        fs::create_dir(path("secrets")).expect("own directory");
        fs::write(path("secrets/one"), "secret").expect("own directory");
        if user == User::Unprivileged {
            let owner = kennel_tests::kennel::UNPRIVILEGED_ID.to_string();
            let given = Command::new("chown")
                .args(["-R", &owner])
                .arg(own.path())
                .status();
            assert!(given.expect("chown starts").success());
        }
        let words = [
            "--access".into(),
            path("access.toml"),
            "--secret-dir".into(),
            path("secrets"),
        ];
        let options = Options {
            user,
            words: words
                .into_iter()
                .map(|word: String| &*word.leak())
                .collect(),
            ..Options::default()
        };
        let kennel = Kennel::start(options).await;
        Self { kennel, own }
    }

    /// Returns the objects with their names.
    fn objects(&self) -> [(&'static str, PathBuf); 7] {
        let own = |name: &str| self.own.path().join(name);
        let data = self.kennel.data_dir();
        [
            ("data directory", data.clone()),
            ("file of it", data.join("digest-key")),
            ("secret directory", own("secrets")),
            ("access file", own("access.toml")),
            ("key", key(self.own.path())),
            ("socket", self.kennel.socket()),
            ("/etc", "/etc".into()),
        ]
    }
}

/// Returns the private key of the server's certificate.
fn key(own: &Path) -> PathBuf {
    let text = fs::read_to_string(own.join("access.toml")).expect("it is there");
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("key = \""));
    own.join(lines.next().expect("a key").trim_end_matches('"'))
}

/// Attributes that an attempt could change. The time of the last change stays out for the data directory, in which the
/// service makes files.
fn attributes(path: &Path) -> String {
    let seen = fs::symlink_metadata(path).expect("it is there");
    let listed = Command::new("getfattr")
        .args(["-h", "-d", "-m", "-"])
        .arg(path)
        .output();
    let listed = listed.map_or_else(|_| Vec::new(), |listed| listed.stdout);
    let (mode, uid, gid, inode) = (seen.mode(), seen.uid(), seen.gid(), seen.ino());
    let own =
        (!seen.is_dir()).then(|| (seen.ctime(), seen.ctime_nsec(), seen.nlink(), seen.size()));
    format!(
        "{mode:o} {uid} {gid} {inode} {own:?} {}",
        String::from_utf8_lossy(&listed)
    )
}

fn same_user() -> User {
    if Uid::effective().is_root() {
        User::Unprivileged
    } else {
        User::Own
    }
}

cases! {
    fn attributes_outside_a_sandbox(Served::start(User::Own).await);
    no_call_of_the_table_changes_anything,
    run_with_a_token_calls_from_its_sandbox,
    run_without_a_network_has_its_loopback,
    changed_data_directory_is_put_back,
}

cases! {
    fn attributes_outside_a_sandbox_without_root(Served::start(same_user()).await);
    no_call_of_the_table_changes_anything,
    run_with_a_token_calls_from_its_sandbox,
    run_without_a_network_has_its_loopback,
    changed_data_directory_is_put_back,
}

// promise: AC-21
async fn no_call_of_the_table_changes_anything(served: &Served) {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("the table has the numbers of another architecture");
        return;
    }
    let kennel = &served.kennel;
    let mut client = kennel.client().await;
    let objects = served.objects();
    let before = objects.each_ref().map(|(_, path)| attributes(path));
    let null = attributes(Path::new("/dev/null"));
    for profile in [SeccompProfile::Unspecified, SeccompProfile::Baseline] {
        let mut words = vec!["/usr/bin/python3".to_owned(), "-c".into(), ATTEMPTS.into()];
        words.push(kennel.keeper_pid().to_string());
        for (name, path) in &objects {
            let seen = fs::metadata(path).expect("it is there");
            words.extend([(*name).to_owned(), path.display().to_string()]);
            words.extend([seen.dev().to_string(), seen.ino().to_string()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut spec = sandboxed(argv(&words));
        spec.min_isolation = pb::Isolation::Files.into();
        spec.privileges.get_or_insert_default().seccomp_profile = profile.into();
        let (text, run) = printed(&mut client, spec).await;
        assert_eq!(run.code(), Some(0), "{text}");
        let gaps = run.coverage.expect("it is reported").gaps;
        let is_open = |gap: &pb::CoverageGap| gap.kind() == CoverageGapKind::AttributesLeaveSandbox;
        assert!(!gaps.iter().any(is_open), "{gaps:?}");
        judge(&text, &objects.each_ref().map(|(name, _)| *name));
    }
    let after = objects.each_ref().map(|(_, path)| attributes(path));
    assert_eq!(after, before);
    assert_eq!(attributes(Path::new("/dev/null")), null);
}

/// Judges the lines: no change has succeeded, and the system alone was met.
fn judge(text: &str, objects: &[&str]) {
    let mut changes: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [kind, _, object, result] = fields[..] else {
            panic!("{line}");
        };
        let is_system = object == "/etc" && kind == "look";
        match result {
            "did" => wrong.push(line),
            "real" if !is_system => wrong.push(line),
            _ => {}
        }
        if kind == "change" {
            *changes.entry(object).or_default() += 1;
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for object in objects {
        let tried = changes.get(object).copied().unwrap_or_default();
        assert!(tried >= CHANGES_MIN, "{object}: {tried}\n{text}");
    }
}

// promise: AC-21a
async fn run_with_a_token_calls_from_its_sandbox(served: &Served) {
    let kennel = &served.kennel;
    let mut client = kennel.client().await;
    let program = kennel.program();
    let script = format!(
        "{} get $KENNEL_RUN_ID >/dev/null && echo called",
        program.display()
    );
    let mut spec = sandboxed(sh(&script));
    let sandbox = spec
        .privileges
        .as_mut()
        .and_then(|privileges| privileges.sandbox.as_mut());
    sandbox.expect("set").readable_paths = vec![program.display().to_string()];
    spec.api_access = pb::ApiAccess::OwnRun.into();
    let (text, run) = printed(&mut client, spec).await;
    assert_eq!(text, "called", "{run:?}");
}

// promise: AC-22
async fn run_without_a_network_has_its_loopback(served: &Served) {
    let mut client = served.kennel.client().await;
    let script = "import os, socket\n\
        names = sorted(name for _, name in socket.if_nameindex())\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        socket.create_connection(server.getsockname()).close()\n\
        try:\n\
        \x20   socket.create_connection(('192.0.2.1', 9), timeout=5)\n\
        except OSError as error:\n\
        \x20   names.append(os.strerror(error.errno))\n\
        print(*names, sep=',')";
    let plain = argv(&["/usr/bin/python3", "-c", script]);
    for mut spec in [plain.clone(), sandboxed(plain)] {
        let privileges = spec.privileges.get_or_insert_default();
        privileges.network = pb::Network::None.into();
        let (text, run) = printed(&mut client, spec).await;
        assert_eq!(text, "lo,Network is unreachable", "{run:?}");
        let shown = run.spec.and_then(|spec| spec.privileges).expect("shown");
        assert_eq!(shown.network(), pb::Network::None);
    }
}

// promise: AC-23
async fn changed_data_directory_is_put_back(served: &Served) {
    let kennel = &served.kennel;
    let data = kennel.data_dir();
    for mode in [0, 0o777] {
        fs::set_permissions(&data, Permissions::from_mode(mode)).expect("own directory");
        eventually("the mode is put back", PATIENCE, || {
            let seen = fs::metadata(&data).expect("it is there");
            (seen.mode() & 0o7777 == 0o700).then_some(())
        })
        .await;
    }
    assert!(kennel.log().contains("was put back"), "{}", kennel.log());
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("exec sleep 1000")).await);
    must("abort", client.abort(&run.run_id).await);
}
