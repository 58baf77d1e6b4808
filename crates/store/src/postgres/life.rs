//! The life of a Postgres database: from the start of its first process to the end of that, and within that until the
//! tables are created anew, as by a restored dump.

use crate::Life;
use sqlx::{PgConnection, Row};
use std::io;

/// The life, in SQL.
macro_rules! words {
    () => {
        "extract(epoch FROM pg_postmaster_start_time())::text || '/' \
            || COALESCE(pg_relation_filenode(to_regclass('nodes'))::text, '')"
    };
}
pub(super) use words;

const LIFE: &str = concat!("SELECT ", words!(), ", pg_is_in_recovery()");

/// Returns the life that this connection finds. A database that cannot be written to has none.
pub(super) async fn ask(conn: &mut PgConnection) -> Result<Life, sqlx::Error> {
    let row = sqlx::raw_sql(LIFE).fetch_one(conn).await?;
    if row.try_get(1)? {
        let why = "it is a standby, nothing can be written there";
        return Err(sqlx::Error::Io(io::Error::other(why)));
    }
    let life: String = row.try_get(0)?;
    Ok(Life::named(life))
}
