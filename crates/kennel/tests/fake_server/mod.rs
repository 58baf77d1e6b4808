//! A server in the test's process with the answers of the test, and the command line as its client.
//!
//! It has no keeper and no runs: it returns the given messages of a method, one answer for each call and the last one for
//! all further calls, and UNIMPLEMENTED for every other method.

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kennel_proto::reason::{DOMAIN, Reason};
use prost::Message;
use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    fmt::Write as _,
    future::poll_fn,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    pin::Pin,
    process::{Command, Output, Stdio},
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tempfile::TempDir;
use tokio::{net::UnixListener, runtime::Runtime};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Bytes in front of each message: whether it is compressed, and its length.
const PREFIX_LEN: usize = 5;

/// Messages of an answer, or its error.
type Answer = Result<Vec<Vec<u8>>, Status>;

#[derive(Default)]
struct Shared {
    answers: Mutex<HashMap<String, VecDeque<Answer>>>,
    requests: Mutex<Vec<(String, Bytes)>>,
}

pub(crate) struct FakeServer {
    dir: TempDir,
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl FakeServer {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread");
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(dir.path().join("s")).expect("own directory")
        };
        runtime.spawn(serve(listener, Arc::clone(&shared)));
        Self {
            dir,
            shared,
            _runtime: runtime,
        }
    }

    /// Adds an answer to calls of a method.
    pub(crate) fn answer(&self, method: &str, message: &impl Message) {
        self.stream(method, std::slice::from_ref(message));
    }

    /// Adds an answer of several messages.
    pub(crate) fn stream(&self, method: &str, messages: &[impl Message]) {
        let messages = messages.iter().map(Message::encode_to_vec).collect();
        self.add(method, Ok(messages));
    }

    /// Adds an error, with its reason and the metadata of it.
    pub(crate) fn refuse(
        &self,
        method: &str,
        reason: Reason,
        message: &str,
        facts: &[(&str, &str)],
    ) {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let metadata: HashMap<_, _> = facts.iter().map(owned).collect();
        let details = ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata);
        let status = Status::with_error_details(reason.code(), message, details);
        self.add(method, Err(status));
    }

    fn add(&self, method: &str, answer: Answer) {
        let mut answers = self.shared.answers.lock().expect("no panic");
        answers
            .entry(method.to_owned())
            .or_default()
            .push_back(answer);
    }

    /// Returns the last request of a method.
    pub(crate) fn last<M: Message + Default>(&self, method: &str) -> M {
        let requests = self.shared.requests.lock().expect("no panic");
        let mut of_method = requests.iter().rev().filter(|(called, _)| called == method);
        let (_, request) = of_method.next().expect("it was called");
        M::decode(&request[PREFIX_LEN..]).expect("a request of this method")
    }

    /// Returns the command line as a client of this server.
    pub(crate) fn kennel(&self, words: &[&str]) -> Command {
        let mut command = bare(Path::new(env!("CARGO_BIN_EXE_kennel")));
        command.args(words).env("KENNEL_SERVER", self.address());
        command
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:{}", self.dir.path().join("s").display())
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.kennel(words).output().expect("the binary runs")
    }

    /// Runs each command line in turn and returns all that is printed, as in a shell: lines of standard error begin with
    /// `!`, and each command ends with its exit code.
    pub(crate) fn transcript(&self, lines: &[&[&str]]) -> String {
        let mut text = String::new();
        for words in lines {
            let output = self.run(words);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "$ kennel {}", words.join(" ").escape_debug());
            text += &String::from_utf8(output.stdout).expect("UTF-8");
            for line in String::from_utf8(output.stderr).expect("UTF-8").lines() {
                let _ = writeln!(text, "! {line}");
            }
            let of_signal = output.status.signal().map(|signal| 128 + signal);
            let code = output.status.code().or(of_signal).expect("one of both");
            let _ = writeln!(text, "-> {code}");
        }
        text.replace(&self.address(), "unix:SOCKET")
    }
}

/// Returns a program without Kennel's own variables, and without input.
pub(crate) fn bare(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KENNEL_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        let answer = service_fn(move |request| answer(request, Arc::clone(&shared)));
        let serving = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), answer);
        // A client may exit at any time.
        tokio::spawn(async move { drop(serving.await) });
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Messages>, Infallible> {
    let path = request.uri().path();
    let method = path.rsplit('/').next().unwrap_or(path).to_owned();
    // An attached client sends until its answer ends.
    let request = match method.as_str() {
        "Attach" => Bytes::new(),
        _ => read(request.into_body()).await,
    };
    let mut requests = shared.requests.lock().expect("no panic");
    requests.push((method.clone(), request));
    let mut answers = shared.answers.lock().expect("no panic");
    let answer = answers
        .get_mut(&method)
        .and_then(|answers| match answers.len() {
            1 => answers.front().cloned(),
            _ => answers.pop_front(),
        });
    let answer =
        answer.unwrap_or_else(|| Err(Status::new(Code::Unimplemented, format!("no {method}"))));
    Ok(match answer {
        Ok(messages) => Response::builder()
            .header("content-type", "application/grpc")
            .body(Messages(
                messages
                    .iter()
                    .map(|message| frame(message))
                    .chain([end()])
                    .collect(),
            ))
            .expect("a response"),
        Err(status) => status.into_http(),
    })
}

/// Reads the body of a request to its end.
async fn read(mut body: Incoming) -> Bytes {
    let mut bytes = BytesMut::new();
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Ok(data) = frame.into_data() {
            bytes.put(data);
        }
    }
    bytes.freeze()
}

fn frame(message: &[u8]) -> Frame<Bytes> {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).expect("a small message"));
    bytes.put(message);
    Frame::data(bytes.freeze())
}

fn end() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("ASCII"));
    Frame::trailers(trailers)
}

/// Body of a response: its messages, then its trailers.
#[derive(Default)]
struct Messages(VecDeque<Frame<Bytes>>);

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}
