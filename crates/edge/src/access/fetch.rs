//! Fetches the keys of an issuer: one GET over TLS, bounded in size and time, without redirects.

use super::remote_keys::{Fetched, Source};
use crate::access::{
    exchange::{collect, exchange},
    key_set::parse_keys,
};
use http::{HeaderMap, Request, StatusCode, Uri, header, uri::Scheme};
use kennel_client::shown;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde::Deserialize;
use std::{
    error::Error,
    fs::{self, File},
    io::Read,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::body::Body as RequestBody;

/// Longest time of a fetch.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// Most bytes of a document.
const DOCUMENT_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of a file with a token or authorities.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Path of the discovery document below the issuer.
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// A document of `OpenID` discovery, as far as it is used.
#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// Fetches the keys. The error says what failed, and never holds a token.
pub(crate) async fn fetch(source: &Source) -> Result<Fetched, String> {
    let (ca, token) = (source.ca.clone(), source.token.clone());
    // CA and token are renewed on disk, so each fetch reads them. A hanging file blocks its thread, so no further fetch
    // begins meanwhile.
    let read = tokio::task::spawn_blocking(move || {
        let tls = config(ca.as_deref())?;
        let token = token.map(|path| read_file(&path)).transpose()?;
        let token = token.map(|token| String::from_utf8_lossy(&token).trim().to_owned());
        Ok::<_, String>((tls, token))
    });
    let (tls, token) = read.await.map_err(|e| e.to_string())??;
    let fetched = tokio::time::timeout(FETCH_MAX, fetch_all(source, tls, token)).await;
    fetched.unwrap_or_else(|_| Err(format!("no answer within {} s", FETCH_MAX.as_secs())))
}

async fn fetch_all(
    source: &Source,
    tls: Arc<ClientConfig>,
    token: Option<String>,
) -> Result<Fetched, String> {
    let url = match &source.url {
        Some(url) => https(url)?,
        None => {
            let base = source.issuer.trim_end_matches('/');
            let at = https(&format!("{base}{DISCOVERY}"))?;
            let (document, _) = get(&at, &tls, token.as_deref()).await?;
            let document: Discovery = serde_json::from_slice(&document)
                .map_err(|e| format!("{at} is no discovery document: {e}"))?;
            if document.issuer != source.issuer {
                return Err(format!("{at} is of another issuer"));
            }
            let url = https(&document.jwks_uri)?;
            // Only the issuer may get the token.
            let is_same = url.authority() == at.authority();
            let token = token.as_deref().filter(|_| is_same);
            return keys(&url, get(&url, &tls, token).await?);
        }
    };
    keys(&url, get(&url, &tls, token.as_deref()).await?)
}

fn keys(url: &Uri, (document, headers): (Vec<u8>, HeaderMap)) -> Result<Fetched, String> {
    let keys = parse_keys(&document).map_err(|why| format!("{url}: {why}"))?;
    let fresh = max_age(&headers);
    Ok(Fetched { keys, fresh })
}

/// Reads a URL of this scheme, without a user.
pub(super) fn https(url: &str) -> Result<Uri, String> {
    let wrong = |why: &str| format!("{url:?} is no URL of keys: {why}");
    let uri: Uri = url.parse().map_err(|_| wrong("it cannot be read"))?;
    if uri.scheme() != Some(&Scheme::HTTPS) {
        return Err(wrong("it does not begin with https://"));
    }
    let has_user = uri.authority().is_some_and(|a| a.as_str().contains('@'));
    if uri.host().is_none_or(str::is_empty) || has_user {
        return Err(wrong("it names no host, or a user"));
    }
    Ok(uri)
}

fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            let wrong = |why: String| format!("authorities in {}: {why}", path.display());
            let text = read_file(path)?;
            for certificate in CertificateDer::pem_slice_iter(&text) {
                let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
                roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong("there is none".to_owned()));
            }
        }
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |why: String| format!("cannot read {}: {why}", path.display());
    // Opening a FIFO would wait for its writer.
    let found = fs::metadata(path).map_err(|e| wrong(e.to_string()))?;
    if !found.is_file() {
        return Err(wrong("it is not a regular file".to_owned()));
    }
    let file = File::open(path).map_err(|e| wrong(e.to_string()))?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

async fn get(
    url: &Uri,
    tls: &Arc<ClientConfig>,
    token: Option<&str>,
) -> Result<(Vec<u8>, HeaderMap), String> {
    let wrong = |why: &(dyn Error + 'static)| format!("{url}: {}", shown(why));
    let host = url.host().unwrap_or_default();
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let port = url.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((name, port))
        .await
        .map_err(|e| wrong(&e))?;
    let server = ServerName::try_from(name.to_owned()).map_err(|e| wrong(&e))?;
    let connecting = TlsConnector::from(Arc::clone(tls)).connect(server, stream);
    let stream = connecting.await.map_err(|e| wrong(&e))?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path)
        .header(header::HOST, url.authority().map_or(name, |a| a.as_str()))
        .header(header::ACCEPT, "application/json");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(RequestBody::empty());
    let request = request.map_err(|_| format!("{url}: the token is no text of a header"))?;
    let answered = exchange(stream, request, async |response| {
        let (head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(format!("has answered {}", head.status));
        }
        Ok((collect(body, DOCUMENT_BYTES_MAX).await?, head.headers))
    });
    answered.await.map_err(|why| format!("{url}: {why}"))
}

/// How long a document is fresh, by its header.
fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let control = headers.get(header::CACHE_CONTROL)?.to_str().ok()?;
    let mut parts = control.split(',').map(str::trim);
    let seconds = parts.find_map(|part| part.strip_prefix("max-age=")?.parse().ok())?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn only_https_urls_without_a_user_are_accepted() {
        for url in ["https://a.example/keys", "https://[::1]:8443/k?x=1"] {
            https(url).expect("it is good");
        }
        for url in [
            "http://a.example/keys",
            "https://u:p@a.example/",
            "/keys",
            "a.example",
            "",
        ] {
            https(url).expect_err("it is refused");
        }
    }

    // promise: I-103
    #[tokio::test(start_paused = true)]
    async fn silent_issuer_fails_after_ten_seconds() {
        // The issuer accepts connections, and never answers.
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = silent.local_addr().expect("an address");
        let source = Source {
            issuer: "https://issuer.example".to_owned(),
            url: Some(format!("https://{at}/keys")),
            ca: None,
            token: None,
        };
        let why = fetch(&source).await.expect_err("no answer");
        assert_eq!(why, "no answer within 10 s");
    }

    #[test]
    fn key_file_must_be_a_regular_file() {
        let why = read_file(Path::new("/dev/null")).expect_err("a device");
        assert!(why.contains("not a regular file"), "{why}");
    }

    #[test]
    fn key_freshness_is_max_age_of_response() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CACHE_CONTROL, text.parse().expect("a value"));
            max_age(&headers).map(|age| age.as_secs())
        };
        assert_eq!(of("public, max-age=3600"), Some(3600));
        assert_eq!(of("max-age=x"), None);
        assert_eq!(of("no-store"), None);
    }
}
