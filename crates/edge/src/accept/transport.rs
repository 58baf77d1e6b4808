//! The bytes of a connection, over any transport.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

/// A connection.
pub(crate) enum Io {
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

macro_rules! io {
    ($self:ident, $io:ident => $done:expr) => {
        match $self.get_mut() {
            Io::Unix(io) => {
                let $io = Pin::new(io);
                $done
            }
            Io::Tls(io) => {
                let $io = Pin::new(&mut **io);
                $done
            }
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        io!(self, io => io.poll_read(cx, buf))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        io!(self, io => io.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        io!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        io!(self, io => io.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        io!(self, io => io.poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(io) => io.is_write_vectored(),
            Self::Tls(io) => io.is_write_vectored(),
        }
    }
}
