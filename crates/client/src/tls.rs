//! TLS over a TCP connection, and the meaning of its errors.

use crate::{Address, ConnectError, credentials::Tls};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Longest wait for the server's first bytes: a server begins with its settings, unless it waits for the client's
/// first.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(1);
/// Buffer for the first bytes alone: later reads bypass it.
const FIRST_BYTES_ROOM: usize = 256;

/// A connection whose first bytes may have arrived already.
pub(crate) type Secured = BufReader<TlsStream<TcpStream>>;

/// Makes the connection secure, and waits for the server's first bytes: in TLS 1.3 the client's end of the handshake is
/// done before the server has verified the client's certificate.
pub(crate) async fn secure(
    address: &Address,
    host: &str,
    stream: TcpStream,
    (tls, config): (&Tls, Arc<ClientConfig>),
) -> Result<Secured, ConnectError> {
    let failed = |error: io::Error| meaning(address, host, tls, error);
    let connector = TlsConnector::from(config);
    let stream = connector
        .connect(tls.name(host)?, stream)
        .await
        .map_err(failed)?;
    let mut stream = BufReader::with_capacity(FIRST_BYTES_ROOM, stream);
    match timeout(FIRST_BYTES_MAX, stream.fill_buf()).await {
        Ok(Ok([])) => {
            let closed = io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            );
            return Err(failed(closed));
        }
        Ok(Err(error)) => return Err(failed(error)),
        Ok(Ok(_)) | Err(_) => {}
    }
    if stream.get_ref().get_ref().1.alpn_protocol().is_none() {
        return Err(failed(io::Error::new(
            io::ErrorKind::InvalidData,
            "it does not speak HTTP/2",
        )));
    }
    Ok(stream)
}

/// Converts the error of a handshake to its meaning for the caller.
fn meaning(address: &Address, host: &str, tls: &Tls, error: io::Error) -> ConnectError {
    let address = address.clone();
    let cause = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(fault)) => server_fault(address, host, tls, fault),
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            ConnectError::NoClientCertificate { address }
        }
        Some(Error::AlertReceived(alert)) => match client_fault(*alert) {
            Some(reason) if tls.certificate.is_some() => {
                ConnectError::ClientCertificate { address, reason }
            }
            _ => ConnectError::Insecure {
                address,
                source: error,
            },
        },
        Some(Error::InvalidMessage(_)) => {
            let source =
                io::Error::new(io::ErrorKind::InvalidData, "the server does not speak TLS");
            ConnectError::Insecure { address, source }
        }
        _ => ConnectError::Insecure {
            address,
            source: error,
        },
    }
}

fn server_fault(address: Address, host: &str, tls: &Tls, fault: &CertificateError) -> ConnectError {
    let reason = match fault {
        // A CA of the same name with another key differs only in its signature.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            let authorities = tls.authorities_shown();
            return ConnectError::UntrustedServer {
                address,
                authorities,
            };
        }
        CertificateError::NotValidForName => return wrong_name(address, host, tls, &[]),
        CertificateError::NotValidForNameContext { presented, .. } => {
            return wrong_name(address, host, tls, presented);
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; is this host's clock right?".to_owned()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "it is not one of a server".to_owned()
        }
        other => other.to_string(),
    };
    ConnectError::ServerCertificate { address, reason }
}

fn wrong_name(address: Address, host: &str, tls: &Tls, presented: &[String]) -> ConnectError {
    ConnectError::WrongServerName {
        address,
        name: tls.server_name.clone().unwrap_or_else(|| host.to_owned()),
        presented: presented.iter().map(|name| bare(name)).collect(),
    }
}

/// Returns a name without its kind: `DnsName("a")` is `a`.
fn bare(name: &str) -> String {
    let inner = name
        .split_once('(')
        .and_then(|(_, inner)| inner.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"').to_owned()
}

/// Returns why a server refuses a certificate of a client, where its alert gives the reason.
fn client_fault(alert: AlertDescription) -> Option<&'static str> {
    Some(match alert {
        AlertDescription::CertificateExpired => "it has expired, or is not valid yet",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it was not issued by an authority of the server"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => "it is not one of a client",
        AlertDescription::AccessDenied => "its principal has no access",
        _ => return None,
    })
}
