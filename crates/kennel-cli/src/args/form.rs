//! The output format: one option for all commands.

use crate::{
    template::{self, Template},
    terminal_text,
};
use std::{
    io::{self, IsTerminal},
    str::FromStr,
    sync::Arc,
};

/// The form of what is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For people, with more columns.
    Wide,
    /// Ids alone.
    Name,
    /// proto3 JSON, one document per line.
    Json,
    /// YAML, one document after the other.
    Yaml,
    /// Some fields of each document, one line each.
    Template(Arc<Template>),
}

impl Format {
    /// Whether the output is for people.
    pub fn is_text(&self) -> bool {
        matches!(self, Self::Text | Self::Wide | Self::Name)
    }

    /// Formats a document, which is JSON, so that a terminal acts on nothing in it.
    pub fn document(&self, json: &str) -> String {
        let value = || serde_json::from_str(json).unwrap_or(serde_json::Value::Null);
        match self {
            Self::Text | Self::Wide | Self::Name | Self::Json => terminal_text::json(json) + "\n",
            Self::Yaml => terminal_text::json(&format!("---\n{}", template::yaml(&value()))),
            Self::Template(template) => {
                let text = template.render(&value()) + "\n";
                // A program gets the unescaped text.
                if io::stdout().is_terminal() {
                    terminal_text::lines(&text)
                } else {
                    text
                }
            }
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let template = |read: Result<Template, String>| Ok(Self::Template(Arc::new(read?)));
        match &*text.to_ascii_lowercase() {
            "text" | "table" => return Ok(Self::Text),
            "wide" => return Ok(Self::Wide),
            "name" => return Ok(Self::Name),
            "json" => return Ok(Self::Json),
            "yaml" => return Ok(Self::Yaml),
            _ => {}
        }
        if let Some(path) = text.strip_prefix("jsonpath=") {
            return template(Template::json_path(path));
        }
        let go = text.strip_prefix("go-template=");
        match go {
            Some(text) => template(Template::go(text)),
            None if text.contains("{{") => template(Template::go(text)),
            None if text.starts_with('{') => template(Template::json_path(text)),
            None => Err(
                "write text, wide, name, json, yaml, jsonpath='{.state}' or '{{.state}}'"
                    .to_owned(),
            ),
        }
    }
}
