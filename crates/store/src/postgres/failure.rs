//! Interpretation of a Postgres error for the write that met it.

use crate::writer::Failure;

/// Decides by SQLSTATE: a refused write was not written, except where the server reports that it is shutting down.
pub(super) fn failure(error: &sqlx::Error) -> Failure {
    let text = error.to_string();
    let code = match error
        .as_database_error()
        .map(sqlx::error::DatabaseError::code)
    {
        Some(code) => code.unwrap_or_default(),
        None if matches!(error, sqlx::Error::Encode(_)) => return Failure::Refused(text),
        None => return Failure::Unknown(text),
    };
    match &*code {
        // admin_shutdown, crash_shutdown, idle_session_timeout end the session, perhaps just after a commit.
        "57P01" | "57P02" | "57P05" => Failure::Unknown(text),
        // Connection exceptions leave the outcome unknown.
        code if code.starts_with("08") => Failure::Unknown(text),
        // Missing privilege, table or column: the database is being restored, or was restored wrongly. A statement
        // prepared by another client: a pooler is in between, which the next transaction takes into account.
        "42501" | "42P01" | "42703" | "42P05" => Failure::Unavailable(text),
        // Data, integrity, syntax or limit errors: a retry cannot help.
        code if ["22", "23", "42", "54"].iter().any(|c| code.starts_with(c)) => {
            Failure::Refused(text)
        }
        _ => Failure::Unavailable(text),
    }
}

/// Classifies by SQLSTATE: connection exceptions, insufficient resources (too many connections), operator intervention (starting,
/// shutting down), and a database that only reads, as a standby does.
pub(crate) fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            ["08", "53", "57", "25006"]
                .iter()
                .any(|class| code.starts_with(class))
        }
        _ => false,
    }
}
