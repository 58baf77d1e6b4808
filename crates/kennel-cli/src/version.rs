//! `kennel version`.

use crate::{
    Binary,
    args::Format,
    failure::Failure,
    link::{Link, print, print_exact},
    status,
};

/// Prints the version of this binary, and of the server if one answers.
pub(crate) async fn version<B: Binary>(
    opened: Result<Link, Failure>,
    format: &Format,
) -> Result<(), Failure> {
    let server = match opened {
        Ok(link) => status::server(&link).await.map(|info| info.version),
        Err(failure) => Err(failure),
    };
    let client = env!("CARGO_PKG_VERSION");
    if !format.is_text() {
        let document = serde_json::json!({
            "version": client,
            "commit": B::COMMIT,
            "build": B::BUILD,
            "serverVersion": server.ok(),
        });
        return print_exact(&format.document(&document.to_string()));
    }
    let server = server.unwrap_or_else(|failure| format!("none: {}", failure.message()));
    print(&format!(
        "kennel  {client}\ncommit  {}\nbuild   {}\nserver  {server}\n",
        B::COMMIT,
        B::BUILD
    ))
}
