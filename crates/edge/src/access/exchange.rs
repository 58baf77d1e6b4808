//! One request by HTTP/1.1 over a connection that is there.

use http::{Request, Response, header};
use http_body::Body as _;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use kennel_client::shown;
use std::{future::poll_fn, pin::pin, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tonic::body::Body;

/// Most bytes of a probe's answer that are read after its head, and the longest time for them: a server that is closed
/// on while it writes reports an error of its own.
const PROBE_BODY_BYTES_MAX: usize = 64 * 1024;
const PROBE_BODY_MAX: Duration = Duration::from_millis(100);

/// Sends a request and returns what `read` makes of its answer. The connection is driven until then, and ends.
pub(crate) async fn exchange<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    request: Request<Body>,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, String>,
) -> Result<T, String> {
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|e| shown(&e))?;
    let answered = async {
        let response = sender.send_request(request).await.map_err(|e| shown(&e))?;
        read(response).await
    };
    let (mut answered, mut connection) = (pin!(answered), pin!(connection));
    tokio::select! { biased;
        answer = &mut answered => answer,
        ended = &mut connection => match ended {
            Ok(()) => answered.await,
            Err(error) => Err(shown(&error)),
        },
    }
}

/// Requires that GET of this path is answered with 2xx. Interim answers (1xx) are skipped, as RFC 9110 demands.
pub(crate) async fn probe(stream: TcpStream, path: &str) -> Result<(), String> {
    let port = stream.peer_addr().map_err(|e| shown(&e))?.port();
    let request = Request::get(path)
        .header(header::HOST, format!("localhost:{port}"))
        .header(header::USER_AGENT, "kennel")
        .header(header::ACCEPT, "*/*")
        .header(header::CONNECTION, "close");
    let request = request.body(Body::empty()).map_err(|e| shown(&e))?;
    exchange(stream, request, async |response| {
        let status = response.status();
        let rest = collect(response.into_body(), PROBE_BODY_BYTES_MAX);
        // Only the status counts.
        let _ = tokio::time::timeout(PROBE_BODY_MAX, rest).await;
        if status.is_success() {
            return Ok(());
        }
        Err(format!("the answer is not 2xx: {status}"))
    })
    .await
}

/// Reads a body of at most so many bytes.
pub(crate) async fn collect(body: Incoming, bytes_max: usize) -> Result<Vec<u8>, String> {
    let (mut body, mut document) = (pin!(body), Vec::new());
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = frame.map_err(|e| shown(&e))?;
        let data = frame.into_data().unwrap_or_default();
        if document.len() + data.len() > bytes_max {
            return Err(format!("it has more than {bytes_max} bytes"));
        }
        document.extend_from_slice(&data);
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    /// Returns the result of a probe, and whether the server could write its whole answer and saw its end.
    async fn probe_answered(parts: Vec<String>) -> (Result<(), String>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("bound");
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut request).await.expect("a request");
            }
            for part in &parts {
                if stream.write_all(part.as_bytes()).await.is_err() {
                    return false;
                }
                tokio::task::yield_now().await;
            }
            stream.shutdown().await.is_ok() && matches!(stream.read_buf(&mut request).await, Ok(0))
        };
        let stream = TcpStream::connect(at).await.expect("it listens");
        tokio::join!(probe(stream, "/health"), server)
    }

    // promise: RW-161
    #[tokio::test]
    async fn final_http_status_decides_the_probe() {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let interim = |status| format!("HTTP/1.1 {status}\r\n\r\n{ok}");
        for good in [
            "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "HTTP/1.0 200\r\n\r\n".to_owned(),
            interim("100 Continue"),
            interim("103 Early Hints"),
        ] {
            assert_eq!(
                probe_answered(vec![good.clone()]).await.0,
                Ok(()),
                "{good:?}"
            );
        }
        for bad in [
            "HTTP/1.1 503 Said\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n",
            "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 2\r\n\r\n",
            "SSH-2.0-OpenSSH 200\r\n",
            "",
        ] {
            let why = probe_answered(vec![bad.to_owned()]).await.0;
            why.expect_err(bad);
        }
    }

    // promise: RW-161
    #[tokio::test]
    async fn probe_reads_http_response_to_its_end() {
        let mut parts = vec!["HTTP/1.1 200 OK\r\nContent-Length: 32768\r\n\r\n".to_owned()];
        parts.extend(vec!["x".repeat(1024); 32]);
        assert_eq!(probe_answered(parts).await, (Ok(()), true));
    }
}
