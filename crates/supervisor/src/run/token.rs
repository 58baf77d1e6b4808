//! The token of an attempt: with it processes of the run may call, as far as its spec grants.

use crate::{base::blocking::blocking, registry::Shared};
use kennel_keeper::rundir;
use kennel_lifecycle::{ApiAccess, RunId};
use std::{io, path::Path, sync::Arc};

/// Writes the token of this attempt to its file, before the command begins, where the spec grants one.
pub(super) async fn hand_out(
    shared: &Arc<Shared>,
    run: RunId,
    attempt: u32,
    access: ApiAccess,
) -> io::Result<()> {
    // If the node now forbids API access, an older run needs no new token.
    if access == ApiAccess::None || shared.config.forbids_api_access {
        return Ok(());
    }
    let shared = Arc::clone(shared);
    let written = blocking(move || {
        let token = shared.config.tokens.token(run, attempt);
        rundir::write_token(&rundir::path(&shared.config.data_dir, run), &token)
    });
    written.await.flatten()
}

/// Variables with which the command finds its token, and the server that takes it.
pub(super) fn variables(
    socket: Option<&Path>,
    access: ApiAccess,
    run_dir: &Path,
) -> Vec<(String, String)> {
    if access == ApiAccess::None {
        return Vec::new();
    }
    let file = rundir::token_path(run_dir).display().to_string();
    let server = socket.map(|path| {
        (
            "KENNEL_SERVER".to_owned(),
            format!("unix:{}", path.display()),
        )
    });
    let token = ("KENNEL_RUN_TOKEN_FILE".to_owned(), file);
    server.into_iter().chain([token]).collect()
}
