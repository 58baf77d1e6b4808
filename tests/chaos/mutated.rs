//! Wrong messages to every rpc, over real connections: each is answered with a code and a reason of the contract, no handler
//! panics, and the server lives.

mod requests;
mod wire;

use kennel_proto::{pb, reason::Reason};
use kennel_tests::{Client, Kennel, SpecExt, argv, must, raw::Raw};
use prost_reflect::{DescriptorPool, MethodDescriptor, ServiceDescriptor};
use requests::{Chance, Pool};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt;

/// Connections that send side by side.
const SENDERS: u64 = 4;
/// After so many messages each sender makes a new run to send about.
const RUN_EVERY: u64 = 250;
/// Longest wait for the first message of a stream, and for the answer of a blocking call.
const WAIT: Duration = Duration::from_millis(100);
/// Upper bound for any answer.
const TOO_LONG: Duration = Duration::from_mins(1);

// promise: A-7a, A-16
#[tokio::test(flavor = "multi_thread")]
async fn mutated_messages_have_typed_answers() {
    send(5_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: `make soak` runs it"]
async fn many_mutated_messages_have_typed_answers() {
    send(50_000).await;
}

/// Results of the messages.
#[derive(Default)]
struct Seen {
    answers: BTreeMap<String, u64>,
    wrong: Vec<String>,
}

async fn send(count: u64) {
    let kennel = Kennel::on_sqlite().await;
    let begun = Instant::now();
    let mut client = kennel.client().await;
    let before = client.server_info().await.expect("it answers");
    let methods: Arc<Vec<MethodDescriptor>> = Arc::new(methods());
    let (next, seen) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(Mutex::new(Seen::default())),
    );
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..SENDERS {
        let (methods, next, seen) = (methods.clone(), next.clone(), seen.clone());
        let mut sender = Sender::open(&kennel).await;
        senders.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                if number.is_multiple_of(RUN_EVERY) {
                    sender.renew().await;
                }
                let method = &methods[usize::try_from(number).expect("small") % methods.len()];
                let (answer, wrong) = sender.send(method, number).await;
                let mut seen = seen.lock().expect("no sender has panicked");
                let key = format!("{} {answer}", method.name());
                *seen.answers.entry(key).or_default() += 1;
                seen.wrong.extend(wrong);
            }
        });
    }
    while let Some(ended) = senders.join_next().await {
        must("send", ended);
    }
    let seen = std::mem::take(&mut *seen.lock().expect("no sender has panicked"));
    println!(
        "{count} messages to {} rpcs in {:?}",
        methods.len(),
        begun.elapsed()
    );
    for (answer, count) in &seen.answers {
        println!("{count:>6} {answer}");
    }
    assert!(seen.wrong.is_empty(), "{}", seen.wrong.join("\n"));
    assert!(!kennel.log().contains("panicked"), "{}", kennel.log());
    let after = client.server_info().await.expect("it lives");
    assert_eq!(after.start_time, before.start_time, "the same server");
}

/// Every rpc of the contract.
fn methods() -> Vec<MethodDescriptor> {
    let pool = DescriptorPool::decode(pb::FILE_DESCRIPTOR_SET).expect("the contract");
    let services: Vec<_> = pool.services().collect();
    services
        .iter()
        .flat_map(ServiceDescriptor::methods)
        .collect()
}

struct Sender {
    client: Client,
    channel: Channel,
    pool: Pool,
}

impl Sender {
    async fn open(kennel: &Kennel) -> Self {
        let address = format!("unix://{}", kennel.socket().display());
        let endpoint = Endpoint::from_shared(address).expect("an address");
        let channel = must("connect", endpoint.connect().await);
        let mut sender = Self {
            client: kennel.client().await,
            channel,
            pool: Pool::default(),
        };
        sender.renew().await;
        sender
    }

    /// Makes a live run and an ended one, for requests to refer to. None: the node drains, or is full.
    async fn renew(&mut self) {
        let _ = self.client.admin.undrain(pb::UndrainRequest {}).await;
        if let Ok(run) = self
            .client
            .spawn(argv(&["sleep", "1000"]).open_input())
            .await
        {
            self.pool.runs.push(run.run_id);
        }
        if let Ok(run) = self.client.spawn(argv(&["true"])).await {
            self.pool.runs.push(run.run_id);
        }
        let keep = self.pool.runs.len().saturating_sub(4);
        for run in self.pool.runs.drain(..keep) {
            let _ = self
                .client
                .abort_with(&run, Some(Duration::ZERO), pb::AbortWait::None)
                .await;
        }
    }

    /// Sends a message; returns the answer, and what is wrong with it.
    async fn send(&mut self, method: &MethodDescriptor, seed: u64) -> (String, Option<String>) {
        let mut chance = Chance::new(seed);
        let message = requests::of(method, &mut chance, &self.pool);
        let shown = format!("{} seed {seed}", method.full_name());
        let asked = self.ask(method, message, &mut chance);
        let answer = tokio::time::timeout(TOO_LONG, asked).await;
        match answer {
            Err(_) => ("none".into(), Some(format!("{shown}: no answer"))),
            Ok(Ok(answer)) => {
                if matches!(method.name(), "Drain") {
                    let _ = self.client.admin.undrain(pb::UndrainRequest {}).await;
                }
                (answer.to_owned(), None)
            }
            // The client's own timeout is not an answer.
            Ok(Err(status)) if std::error::Error::source(&status).is_some() => {
                ("none in time".into(), None)
            }
            Ok(Err(status)) => {
                let info = status.get_details_error_info();
                let reason = info.map_or_else(String::new, |info| info.reason);
                let known = Reason::ALL.iter().any(|known| known.as_str() == reason);
                let is_fault = matches!(status.code(), Code::Unknown | Code::Internal)
                    && reason != Reason::SpawnFailed.as_str();
                let wrong = (!known || is_fault).then(|| format!("{shown}: {status:?}"));
                (format!("{:?} {reason}", status.code()), wrong)
            }
        }
    }

    async fn ask(
        &self,
        method: &MethodDescriptor,
        message: Vec<u8>,
        chance: &mut Chance,
    ) -> Result<&'static str, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.expect("it listens");
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let path = path.parse().expect("a path");
        if method.is_client_streaming() {
            let rest = (0..chance.below(3)).map(|_| requests::of(method, chance, &self.pool));
            let messages: Vec<_> = std::iter::once(message).chain(rest).collect();
            let messages = Request::new(tokio_stream::iter(messages));
            let answer = grpc.streaming(messages, path, Raw).await?;
            return first(answer.into_inner()).await;
        }
        if method.is_server_streaming() {
            let answer = grpc.server_streaming(Request::new(message), path, Raw);
            return first(answer.await?.into_inner()).await;
        }
        let mut request = Request::new(message);
        // Blocking calls report the deadline themselves; other calls answer at once.
        let waits = [
            "Abort",
            "Restart",
            "WaitRun",
            "WaitForOutput",
            "WriteInput",
            "CloseInput",
        ];
        if waits.contains(&method.name()) {
            request.set_timeout(WAIT);
        }
        grpc.unary(request, path, Raw).await.map(|_| "OK")
    }
}

/// Returns the first message of a stream, if one comes soon.
async fn first(mut stream: tonic::Streaming<Vec<u8>>) -> Result<&'static str, Status> {
    match tokio::time::timeout(WAIT, stream.message()).await {
        Ok(message) => message.map(|_| "OK"),
        Err(_) => Ok("silent"),
    }
}
