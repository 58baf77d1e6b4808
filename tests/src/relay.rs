//! A unix socket before another one, whose connections a test can cut: a network between two processes of one host.

use std::path::PathBuf;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinHandle,
};

/// Bytes of one read.
const PIECE_BYTES: usize = 64 * 1024;

/// A relay between the clients of a socket and the process behind another one. Ends with its connections when dropped.
pub struct Relay {
    at: PathBuf,
    passes: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Listens at a path, and passes all bytes to and from the socket at another one.
    ///
    /// # Panics
    /// If it cannot listen there.
    #[must_use]
    pub fn start(at: PathBuf, to: PathBuf) -> Self {
        let listener = UnixListener::bind(&at).expect("own directory");
        let (passes, gate) = watch::channel(true);
        let accepting = tokio::spawn(accept(listener, to, gate));
        Self {
            at,
            passes,
            accepting,
        }
    }

    /// Returns the path at which it listens.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.at.clone()
    }

    /// Passes nothing any more, as a network that drops all packets: connections stay, and new ones get no answer. What
    /// was sent meanwhile arrives after [`Self::mend`].
    pub fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// Passes everything again.
    pub fn mend(&self) {
        self.passes.send_replace(true);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Dropping the gate ends the connections.
        self.accepting.abort();
    }
}

async fn accept(listener: UnixListener, to: PathBuf, gate: watch::Receiver<bool>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(connection(client, to.clone(), gate.clone()));
    }
}

async fn connection(client: UnixStream, to: PathBuf, mut gate: watch::Receiver<bool>) {
    if !opens(&mut gate).await {
        return;
    }
    // Without a listening server, the client's connection is closed.
    let Ok(server) = UnixStream::connect(&to).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        pass(from_client, to_server, gate.clone()),
        pass(from_server, to_client, gate)
    );
}

/// Passes bytes until either end closes.
async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut gate: watch::Receiver<bool>) {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = tokio::select! {
            read = from.read(&mut piece) => read,
            () = is_gone(gate.clone()) => return,
        };
        if !opens(&mut gate).await {
            return;
        }
        match read {
            Ok(len) if len > 0 => {
                if to.write_all(&piece[..len]).await.is_err() {
                    return;
                }
            }
            // Dropping `to` closes the other side.
            Ok(_) | Err(_) => return,
        }
    }
}

/// Waits until bytes pass; `false`: the relay is gone.
async fn opens(gate: &mut watch::Receiver<bool>) -> bool {
    gate.wait_for(|passes| *passes).await.is_ok()
}

async fn is_gone(mut gate: watch::Receiver<bool>) {
    while gate.changed().await.is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PATIENCE, within};
    use std::time::Duration;

    #[tokio::test]
    async fn cut_relay_delivers_after_it_is_mended() {
        let dir = tempfile::tempdir().expect("a directory");
        let behind = dir.path().join("behind");
        let server = UnixListener::bind(&behind).expect("own directory");
        let relay = Relay::start(dir.path().join("before"), behind);
        let mut client = UnixStream::connect(relay.path()).await.expect("it listens");
        client.write_all(b"a").await.expect("it is sent");
        let (mut peer, _) = server.accept().await.expect("it is passed");
        assert_eq!(peer.read_u8().await.expect("it is passed"), b'a');
        relay.cut();
        client.write_all(b"b").await.expect("it is sent");
        let mut other = UnixStream::connect(relay.path()).await.expect("it listens");
        let mut byte = [0];
        let passed = tokio::time::timeout(Duration::from_millis(50), peer.read(&mut byte)).await;
        assert!(passed.is_err(), "nothing passes: {passed:?}");
        relay.mend();
        let passed = within("it arrives", PATIENCE, peer.read_u8()).await;
        assert_eq!(passed.expect("it is passed"), b'b');
        let (second, _) = within("it is accepted", PATIENCE, server.accept())
            .await
            .expect("it is passed");
        drop((second, peer));
        let ended = within("both end", PATIENCE, other.read(&mut byte)).await;
        assert_eq!(ended.expect("closed"), 0);
    }
}
