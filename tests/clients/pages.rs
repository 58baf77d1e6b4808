//! The projects of the pages for each language, run as written there, across a SIGKILL of the server.

use super::{
    CLIENT_PATIENCE,
    conformance::pack_python,
    typescript::{pack_typescript, runtimes},
};
use kennel_tests::{
    Kennel, eventually,
    programs::{repository, tools},
    project::Project,
    shell::{finish, run_to_end, text},
};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// Libraries are fetched and compiled where this host has not had them before.
const BUILD_PATIENCE: Duration = Duration::from_mins(12);
/// Path of the socket in the pages.
const SOCKET: &str = "/run/kennel/kennel.sock";
/// The server is killed when a client has printed this.
const MIDDLE: &str = "line 20\n";

/// Returns a shell in the project, which finds the programs of Debian, Go, Node and Bun only: a page installs all else
/// that it uses. Installs stay in the project; downloads are cached for the next run.
pub(crate) fn shell(project: &Path, script: &str) -> Command {
    let cache = |name: &str| tools().join("cache").join(name);
    let path = format!("{}:{}:/usr/bin:/bin", runtimes().display(), go().display());
    let repository = format!("-Dmaven.repo.local={}", cache("maven").display());
    let mut shell = Command::new("bash");
    shell
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(project)
        .env("PATH", path)
        .env("GOCACHE", cache("go-build"))
        .env("GOMODCACHE", cache("go-modules"))
        // Unoptimised build: compiling takes longer than running the programs.
        .env("GOFLAGS", "-modcacherw -gcflags=all=-N -ldflags=-s")
        .env("MAVEN_OPTS", repository)
        .env("NPM_CONFIG_CACHE", cache("npm"))
        .env("PIP_CACHE_DIR", cache("pip"));
    shell
}

/// Returns the directory of Go's own programs.
fn go() -> PathBuf {
    let path = env::var_os("PATH").expect("there is a PATH");
    let mut programs = env::split_paths(&path).map(|dir| dir.join("go"));
    let go = programs.find_map(|program| program.canonicalize().ok());
    let go = go.expect("Go is installed");
    go.parent().expect("it is in a directory").to_owned()
}

/// Runs the page of a language. Its clients end with a stopped run and an error's reason.
async fn run_page(language: &str) {
    for rest in run_project(&format!("clients/{language}"), language).await {
        let [stopped, refused] = &rest[..] else {
            panic!("two lines follow: {rest:?}");
        };
        assert!(stopped.ends_with("CANCELLED SIGTERM"), "{stopped}");
        assert!(refused.ends_with(" RUN_NOT_FOUND"), "{refused}");
    }
}

/// Runs the project of a page: the first block of commands builds, each line of the second is a client. Returns what
/// each has printed behind the output of its run.
async fn run_project(page: &str, language: &str) -> Vec<Vec<String>> {
    let mut kennel = Kennel::on_sqlite().await;
    let page = Project::read(&repository().join(format!("docs/guide/{page}.md")));
    let project = kennel.scratch().join("project");
    fs::create_dir(&project).expect("a directory can be made");
    page.write_files(&project);
    let [build, run] = &page.commands[..] else {
        panic!("the page has two blocks of commands: {page:?}");
    };
    let packages = kennel.scratch().join("packages");
    if language == "python" {
        pack_python(&packages).await;
    } else if language == "typescript" {
        pack_typescript(&packages, &kennel.scratch().join("installed")).await;
        use_packed(&project.join("package.json"), &packages);
    }
    let proto = format!("cp -r '{}/proto' proto", repository().display());
    let mut build = shell(&project, &format!("{proto}\n{build}"));
    build.env("PIP_FIND_LINKS", &packages);
    let done = run_to_end(build, BUILD_PATIENCE).await;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}\n{errors}", text(&done));
    let mut rests = Vec::new();
    for client in run.lines() {
        rests.push(run_client(&mut kennel, &project, client).await);
    }
    rests
}

/// Names the packed file in place of a release of the package.
fn use_packed(project: &Path, packages: &Path) {
    let text = fs::read_to_string(project).expect("the page has a project");
    let version = env!("CARGO_PKG_VERSION");
    let released = format!("\"@kennel/client\": \"{version}\"");
    assert!(text.contains(&released), "{text}");
    let file = packages.join(format!("kennel-client-{version}.tgz"));
    let packed = format!("\"@kennel/client\": \"file:{}\"", file.display());
    fs::write(project, text.replace(&released, &packed)).expect("written");
}

async fn run_client(kennel: &mut Kennel, project: &Path, client: &str) -> Vec<String> {
    let socket = kennel.socket().display().to_string();
    let printed = project.join("printed");
    let output = fs::File::create(&printed).expect("a file can be made");
    let mut client = shell(
        project,
        &format!("exec {}", client.replace(SOCKET, &socket)),
    );
    client
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::piped());
    let client = client.spawn().expect("it starts");
    let read = || fs::read_to_string(&printed).expect("it is a file of text");
    let kill = async {
        eventually("output in the middle", CLIENT_PATIENCE, || {
            read().contains(MIDDLE).then_some(())
        })
        .await;
        kennel.replace_server().await;
    };
    let (ended, ()) = tokio::join!(finish(client, "the client", CLIENT_PATIENCE), kill);
    let printed = read();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {errors}", ended.status);
    let lines: Vec<String> = (0..100).map(|i| format!("line {i}")).collect();
    let wanted = lines.join("\n") + "\n";
    let (output, rest) = printed.split_at(wanted.len().min(printed.len()));
    assert_eq!(output, wanted, "all of it, once");
    rest.lines().map(str::to_owned).collect()
}

// promise: O-47a
#[tokio::test(flavor = "multi_thread")]
async fn agent_protocol_page_runs_over_a_server_death() {
    let rests = run_project("how-to/acp", "typescript").await;
    assert_eq!(rests, [["end_turn", "CANCELLED SIGTERM"]]);
}

/// No .NET SDK is to be had for these tests: the page ends with message classes.
// promise: O-44
#[tokio::test(flavor = "multi_thread")]
async fn csharp_page_generates_message_classes() {
    let page = Project::read(&repository().join("docs/guide/clients/csharp.md"));
    let [commands] = &page.commands[..] else {
        panic!("the page has one block of commands: {page:?}");
    };
    let project = tempfile::tempdir().expect("a directory");
    let proto = format!("cp -r '{}/proto' proto", repository().display());
    let generate = shell(project.path(), &format!("{proto}\n{commands}"));
    let done = run_to_end(generate, CLIENT_PATIENCE).await;
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{errors}");
    let contract = fs::read_dir(project.path().join("proto/kennel/v1")).expect("the contract");
    let classes = fs::read_dir(project.path().join("stubs")).expect("classes");
    let classes: Vec<String> = classes
        .map(|file| fs::read_to_string(file.expect("a file").path()).expect("text"))
        .collect();
    assert_eq!(classes.len(), contract.count());
    for text in classes {
        assert!(text.contains("namespace Kennel.V1 {"), "{text:.400}");
    }
}

// promise: O-43
#[tokio::test(flavor = "multi_thread")]
async fn go_page_survives_death_of_server() {
    run_page("go").await;
}

// promise: O-43
#[tokio::test(flavor = "multi_thread")]
async fn java_page_survives_death_of_server() {
    run_page("java").await;
}

// promise: O-43
#[tokio::test(flavor = "multi_thread")]
async fn typescript_page_survives_death_of_server() {
    run_page("typescript").await;
}

// promise: O-43
#[tokio::test(flavor = "multi_thread")]
async fn python_page_survives_death_of_server() {
    run_page("python").await;
}
