//! Every RPC for processes of runs: a table made of the contract, asked through a process of each run.

use crate::{
    net::{Net, sleeper},
    network::{methods, options_of_methods},
    role_table::{Column, answer, good_requests},
};
use kennel_client::Connection;
use kennel_proto::pb::{self, ApiAccess};
use kennel_tests::{PATIENCE, eventually, must, new_run_id};
use std::{fmt::Write as _, fs};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};

/// Passes connections on: `python - LISTEN SERVER`. So the process that connects to the server is one of the run.
const RELAY: &str = r#"
import asyncio, os, sys
listen, server = sys.argv[1], sys.argv[2]

async def copy(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def accept(reader, writer):
    there, back = await asyncio.open_unix_connection(server)
    await asyncio.gather(copy(reader, back), copy(there, writer))

async def main():
    relay = await asyncio.start_unix_server(accept, listen + ".new")
    os.rename(listen + ".new", listen)
    await relay.serve_forever()

asyncio.run(main())
"#;

/// A run that passes connections on, with its token.
struct Relay {
    channel: Channel,
    token: Option<String>,
}

impl Relay {
    async fn begin(net: &Net, owner: &Connection, access: ApiAccess) -> Self {
        let path = net.file(&format!("{}.sock", access.as_str_name()));
        let mut request = sleeper("", &[]);
        let spec = request.spec.as_mut().expect("a spec");
        let socket = net.kennel.socket();
        let words = [
            &"/usr/bin/python3".into(),
            &"-c".into(),
            &RELAY.into(),
            &path,
            &socket,
        ];
        spec.command = Some(pb::run_spec::Command::Argv(pb::Argv {
            args: words.map(|word| word.display().to_string()).to_vec(),
            ..pb::Argv::default()
        }));
        spec.api_access = access.into();
        let spawned = must("spawn", owner.processes().spawn(request).await);
        let run = spawned.into_inner().run.expect("a run").run_id;
        eventually("it listens", PATIENCE, || path.exists().then_some(())).await;
        let token = fs::read_to_string(net.kennel.run_dir(&run).join("token")).ok();
        assert_eq!(token.is_some(), access != ApiAccess::Unspecified);
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()));
        let channel = endpoint.expect("a path").connect_lazy();
        Self { channel, token }
    }

    fn column(&self, name: &str, token: Option<&String>) -> Column {
        Column {
            name: name.to_owned(),
            channel: self.channel.clone(),
            token: token.cloned(),
        }
    }
}

/// What a run with this access is answered, for runs that are not its own.
fn expected(access: ApiAccess, rpc: &str, least: usize) -> (Code, &'static str) {
    let has = usize::try_from(i32::from(access)).expect("small");
    match rpc {
        _ if least == 0 || least > has => (Code::PermissionDenied, "PERMISSION_DENIED"),
        "Spawn" | "ResolveCommand" | "ListRuns" | "ForEachRun" => (Code::Ok, ""),
        _ => (Code::NotFound, "RUN_NOT_FOUND"),
    }
}

// promise: RW-84
#[tokio::test(flavor = "multi_thread")]
async fn each_rpc_answers_runs_by_api_access() {
    let net = Net::start().await;
    let alice = net.by_certificate("alice").await;
    // `other` is foreign to the runs below, despite the same owner.
    let other = new_run_id();
    must("spawn", alice.processes().spawn(sleeper(&other, &[])).await);
    let none = Relay::begin(&net, &alice, ApiAccess::Unspecified).await;
    let own = Relay::begin(&net, &alice, ApiAccess::OwnRun).await;
    let children = Relay::begin(&net, &alice, ApiAccess::Children).await;
    let nothing = ApiAccess::Unspecified;
    let columns = [
        (none.column("no access", None), nothing),
        (none.column("stolen token", own.token.as_ref()), nothing),
        (own.column("no token", None), nothing),
        (
            own.column("token of another run", children.token.as_ref()),
            nothing,
        ),
        (own.column("own run", own.token.as_ref()), ApiAccess::OwnRun),
        (
            children.column("children", children.token.as_ref()),
            ApiAccess::Children,
        ),
    ];
    let access = options_of_methods("kennel.v1.run_access");
    assert_eq!(access.len(), methods().len());
    let opened = access.iter().filter(|(_, least)| *least > 0).count();
    assert_eq!(opened, 25, "what is opened to runs is said here too");
    let (mut wrong, mut cells) = (String::new(), 0);
    for (path, least) in &access {
        let rpc = path.rsplit('/').next().expect("a name");
        for (column, access) in &columns {
            for run in [other.clone(), new_run_id()] {
                let request = good_requests(&run)[rpc].clone();
                let (code, reason) = answer(column, path, request).await;
                cells += 1;
                let expected = expected(*access, rpc, *least);
                println!("{rpc} by {}: {code:?} {reason}", column.name);
                if (code, &*reason) != expected {
                    let name = &column.name;
                    let _ = writeln!(
                        wrong,
                        "{rpc} by {name}: {code:?} {reason}, not {expected:?}"
                    );
                }
            }
        }
    }
    println!("{cells} cells");
    assert!(wrong.is_empty(), "{wrong}");
    let request = pb::GetRunRequest { run_id: other };
    let left = must("get", alice.processes().get_run(request).await);
    let left = left.into_inner().run.expect("a run");
    assert_eq!(left.state(), pb::RunState::Running);
}
