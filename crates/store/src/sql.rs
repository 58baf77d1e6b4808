//! A statement with the values of its parameters, for either database.

use sqlx::{AssertSqlSafe, Database, Encode, Type, query::Query};
use std::fmt::Write as _;

/// A value of a parameter.
#[derive(Debug)]
pub(crate) enum Value {
    Text(String),
    Number(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A statement that is put together. Its parameters are `$1`, `$2` and so on, in the order in which they are bound.
#[derive(Debug)]
pub(crate) struct Sql {
    text: String,
    values: Vec<Value>,
}

impl Sql {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            values: Vec::new(),
        }
    }

    /// Binds the next parameter, which is in the text.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    pub(crate) fn push(&mut self, text: impl AsRef<str>) -> &mut Self {
        self.text.push_str(text.as_ref());
        self
    }

    /// Adds the next parameter to the text, and binds it.
    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        let _ = write!(self.text, "${}", self.values.len());
        self
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Makes the query for a database.
    pub(crate) fn query<DB: Database>(self) -> Query<'static, DB, DB::Arguments>
    where
        for<'t> String: Encode<'t, DB> + Type<DB>,
        for<'t> i64: Encode<'t, DB> + Type<DB>,
    {
        let query = sqlx::query(AssertSqlSafe(self.text));
        let bind = |query: Query<'static, DB, DB::Arguments>, value| match value {
            Value::Text(text) => query.bind(text),
            Value::Number(number) => query.bind(number),
        };
        self.values.into_iter().fold(query, bind)
    }
}
