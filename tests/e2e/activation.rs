//! Listening sockets that a service manager passes, as `sd_listen_fds(3)` describes.

use kennel_proto::pb;
use kennel_tests::{
    Kennel, Options, PATIENCE, SHUTDOWN_LIMIT, cases,
    kennel::bare_command,
    must, programs, sh,
    shell::{finish, run_to_end},
};
use nix::sys::signal::Signal;
use std::{
    fs,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{MetadataExt, PermissionsExt, symlink},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
};

/// The first bytes of every client: the preface, and empty settings.
const HTTP2_BEGINNING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Binds the socket at which [`Kennel`] listens, as the unit of a socket does.
fn bind(dir: &Path) -> UnixListener {
    must("a directory", fs::create_dir_all(dir.join("s")));
    let path = dir.join("s/kennel.sock");
    let listener = must("bind", UnixListener::bind(&path));
    must(
        "mode",
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)),
    );
    listener
}

/// A service at a socket that was passed to it.
struct Scene {
    kennel: Kennel,
    listener: Arc<UnixListener>,
    /// Inode of the socket's file.
    file: u64,
}

impl Scene {
    async fn begin() -> Self {
        let dir = must("a directory", tempfile::tempdir());
        let listener = Arc::new(bind(dir.path()));
        let path = dir.path().join("s/kennel.sock");
        let file = must("metadata", fs::metadata(path)).ino();
        let options = Options {
            passed_socket: Some(Arc::clone(&listener)),
            ..Options::default()
        };
        let kennel = Kennel::start_in(dir, options).await;
        Self {
            kennel,
            listener,
            file,
        }
    }
}

cases! {
    fn passed_socket(mut Scene::begin().await);
    keeper_and_server_alone_hold_passed_socket,
    passed_socket_serves_across_servers_and_keepers,
}

/// Number of descriptors of a process for the same socket.
fn copies(pid: i32, socket: &Path) -> usize {
    let fds = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let links = fds.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    links.filter(|link| link == socket).count()
}

// promise: RW-132
async fn passed_socket_serves_across_servers_and_keepers(scene: &mut Scene) {
    let (kennel, file) = (&mut scene.kennel, scene.file);
    let path = kennel.socket();
    kennel.kill_server();
    kennel.serve_again().await;
    kennel.kill_keeper();
    kennel.restart().await;
    let mut client = kennel.client().await;
    let id = must("spawn", client.spawn(sh("exec sleep 600")).await).run_id;
    drop(client);
    kennel.replace_server().await;
    let run = must("get", kennel.client().await.get(&id).await);
    assert_eq!(run.state(), pb::RunState::Running);

    kennel.signal(Signal::SIGTERM);
    kennel.wait_for_exit(SHUTDOWN_LIMIT).await;
    // The service manager owns the socket: clients that connect now wait for the next keeper.
    assert_eq!(must("metadata", fs::metadata(&path)).ino(), file);
    let mut waiting = must("connect", UnixStream::connect(&path));
    must("written", waiting.write_all(HTTP2_BEGINNING));
    kennel.restart().await;
    must("limit", waiting.set_read_timeout(Some(PATIENCE)));
    let mut answer = [0; 1];
    must("an answer", waiting.read_exact(&mut answer));
    let run = must("get", kennel.client().await.get(&id).await);
    assert_eq!(
        run.state(),
        pb::RunState::Cancelled,
        "it was ended in order"
    );
}

// promise: RW-133
async fn keeper_and_server_alone_hold_passed_socket(scene: &mut Scene) {
    let kennel = &scene.kennel;
    let listener = scene.listener.as_raw_fd();
    let socket = fs::read_link(format!("/proc/self/fd/{listener}"));
    let socket = must("a link", socket);
    let mut client = kennel.client().await;
    let id = must("spawn", client.spawn(sh("exec sleep 600")).await).run_id;
    let server = kennel.server().expect("it serves").pid;
    assert_eq!(copies(kennel.keeper_pid(), &socket), 1);
    for process in kennel.descendants() {
        let expected = usize::from(process.pid == server);
        assert_eq!(
            copies(process.pid, &socket),
            expected,
            "{:?}",
            process.cmdline()
        );
    }
    must("abort", client.abort(&id).await);
}

// promise: RW-133
#[tokio::test]
async fn unusable_passed_sockets_are_refused_with_reason() {
    let dir = must("a directory", tempfile::tempdir());
    let path = dir.path().join("s/kennel.sock");
    let here = format!("unix:{}", path.display());
    let listener = bind(dir.path());
    let refused = async |listen: &str, fds: &str, socket: &dyn Fn() -> OwnedFd| {
        let output = serve(dir.path(), listen, fds, socket()).await;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let good = || OwnedFd::from(must("a copy", listener.try_clone()));
    let elsewhere = refused("unix:/nowhere/s", "1", &good).await;
    assert!(
        elsewhere.contains(&format!(
            "\"kennel.socket\" of the service manager: it is bound to {here}"
        )),
        "{elsewhere}"
    );
    let wide = refused(&format!("{here}?mode=0660"), "1", &good).await;
    assert!(wide.contains("mode 0600, and --listen says 0660"), "{wide}");
    let connected = || OwnedFd::from(must("a pair", UnixStream::pair()).0);
    let said = refused(&here, "1", &connected).await;
    assert!(said.contains("not a listening stream socket"), "{said}");
    let said = refused(&here, "2", &good).await;
    assert!(said.contains("descriptor 4 is not open"), "{said}");
    let said = refused(&here, "many", &good).await;
    assert!(said.contains("LISTEN_FDS: \"many\""), "{said}");
    must("removed", fs::remove_file(&path));
    must("a link", symlink("/dev/null", &path));
    let said = refused(&here, "1", &good).await;
    assert!(said.contains("its file is gone"), "{said}");
}

/// A socket that is meant for another process is left to it.
// promise: RW-133
#[tokio::test]
async fn socket_of_another_process_is_not_used() {
    let dir = must("a directory", tempfile::tempdir());
    let listener = bind(dir.path());
    let here = format!("unix:{}", dir.path().join("s/kennel.sock").display());
    let mut command = serve_command(dir.path(), &here);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1");
    let output = run_to_end(command, PATIENCE).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("cannot listen on") && said.contains("in use"),
        "{said}"
    );
    drop(listener);
}

fn serve_command(dir: &Path, listen: &str) -> Command {
    let mut command = bare_command(&programs::kennel());
    command.args(["serve", "--listen", listen, "--data-dir"]);
    command.arg(dir.join("data"));
    command
}

/// Serves, and waits for its end: one that is not refused is killed.
async fn serve(dir: &Path, listen: &str, fds: &str, socket: OwnedFd) -> Output {
    let serve = serve_command(dir, listen);
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$; exec \"$@\"";
    let mut command = bare_command(Path::new("sh"));
    command.args(["-ec", script, "sh"]).arg(serve.get_program());
    command.args(serve.get_args());
    command
        .env("LISTEN_FDS", fds)
        .env("LISTEN_FDNAMES", "kennel.socket");
    command
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = must("it runs", command.spawn());
    finish(child, "kennel serve", PATIENCE).await
}
