//! A listening socket of a test that runs hold open too, as they inherit one of a service manager.

use crate::{client::sh, programs};
use kennel_proto::pb;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::{
    io::IoSlice,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixListener,
    },
};
use tempfile::TempDir;

/// A socket that is lent to every process that asks, until the test's process ends.
#[derive(Debug)]
pub struct Lent(TempDir);

impl Lent {
    /// Lends a socket.
    ///
    /// # Panics
    /// If there is no temporary directory.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let lender = UnixListener::bind(directory.path().join("lender")).expect("own directory");
        std::thread::spawn(move || {
            for borrower in lender.incoming().flatten() {
                let (byte, sockets) = ([IoSlice::new(b"s")], [socket.as_raw_fd()]);
                let rights = [ControlMessage::ScmRights(&sockets)];
                let flags = MsgFlags::empty();
                // The borrower may have exited.
                let _ = sendmsg::<()>(borrower.as_raw_fd(), &byte, &rights, flags, None);
            }
        });
        Self(directory)
    }

    /// Returns a spec that runs this script with the socket open.
    #[must_use]
    pub fn sh(&self, script: &str) -> pb::RunSpec {
        let (program, path) = (programs::naughty(), self.0.path().join("lender"));
        sh(&format!(
            "exec {} with-socket {} /bin/sh -c '{script}'",
            program.display(),
            path.display()
        ))
    }
}
