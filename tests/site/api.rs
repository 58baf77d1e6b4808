//! The API reference, from the comments of the contract: a page for each service, and one for each file of messages.

use anyhow::Context as _;
use kennel_proto::reason::Reason;
use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use std::{collections::BTreeMap, fmt::Write as _};

/// The package of the contract.
const PACKAGE: &str = ".kennel.v1.";
// Field numbers of descriptor.proto; comment paths consist of them.
const MESSAGES: i32 = 4;
const ENUMS: i32 = 5;
const SERVICES: i32 = 6;
const FIELDS: i32 = 2;
const NESTED_MESSAGES: i32 = 3;
const NESTED_ENUMS: i32 = 4;
const VALUES: i32 = 2;
const METHODS: i32 = 2;

/// The contract with its comments.
const CONTRACT: &[u8] = include_bytes!("../../proto/kennel.v1.binpb");

/// A page of the reference.
pub(crate) struct ApiPage {
    pub(crate) title: String,
    pub(crate) file: String,
    pub(crate) text: String,
}

/// Path of a comment.
type Place = Vec<i32>;

/// Returns all pages, services first.
pub(crate) fn pages() -> anyhow::Result<Vec<ApiPage>> {
    let set = FileDescriptorSet::decode(CONTRACT).context("the contract cannot be read")?;
    let files: Vec<&FileDescriptorProto> = set
        .file
        .iter()
        .filter(|file| file.package() == "kennel.v1")
        .collect();
    let types = types(&files);
    let mut services = Vec::new();
    let mut messages = Vec::new();
    for file in files {
        let writer = Writer {
            comments: comments(file),
            types: &types,
        };
        services.extend(writer.services(file));
        messages.extend(writer.messages(file));
    }
    services.append(&mut messages);
    Ok(services)
}

/// Returns the name of a file without folder and extension.
fn stem(file: &FileDescriptorProto) -> &str {
    let name = file.name().rsplit('/').next().unwrap_or_default();
    name.trim_end_matches(".proto")
}

fn page_of(file: &FileDescriptorProto) -> String {
    format!("api-{}-messages.md", stem(file).replace('_', "-"))
}

/// Returns the page of each type, by its name with the package.
fn types(files: &[&FileDescriptorProto]) -> BTreeMap<String, String> {
    let mut types = BTreeMap::new();
    for file in files {
        let page = page_of(file);
        let mut add = |name: String| types.insert(format!("{PACKAGE}{name}"), page.clone());
        for message in &file.message_type {
            for (name, _, _) in nested(message, message.name(), &[]) {
                add(name);
            }
        }
        for (name, _, _) in enums(file) {
            add(name);
        }
    }
    types
}

/// Returns a message and those within it, maps left out, each with its name and path.
fn nested<'a>(
    message: &'a DescriptorProto,
    name: &str,
    place: &[i32],
) -> Vec<(String, &'a DescriptorProto, Place)> {
    let mut all = vec![(name.to_owned(), message, place.to_vec())];
    for (at, inner) in (0..).zip(&message.nested_type) {
        let is_map = inner
            .options
            .as_ref()
            .is_some_and(prost_types::MessageOptions::map_entry);
        if !is_map {
            let place = [place, &[NESTED_MESSAGES, at]].concat();
            all.extend(nested(inner, &format!("{name}.{}", inner.name()), &place));
        }
    }
    all
}

fn all_messages(file: &FileDescriptorProto) -> Vec<(String, &DescriptorProto, Place)> {
    let top = (0..).zip(&file.message_type);
    top.flat_map(|(at, message)| nested(message, message.name(), &[MESSAGES, at]))
        .collect()
}

fn enums(file: &FileDescriptorProto) -> Vec<(String, &EnumDescriptorProto, Place)> {
    let mut all: Vec<_> = (0..)
        .zip(&file.enum_type)
        .map(|(at, kind)| (kind.name().to_owned(), kind, vec![ENUMS, at]))
        .collect();
    for (name, message, place) in all_messages(file) {
        for (at, kind) in (0..).zip(&message.enum_type) {
            let place = [&place[..], &[NESTED_ENUMS, at]].concat();
            all.push((format!("{name}.{}", kind.name()), kind, place));
        }
    }
    all
}

fn comments(file: &FileDescriptorProto) -> BTreeMap<Place, String> {
    let locations = file.source_code_info.iter().flat_map(|info| &info.location);
    locations
        .filter(|location| location.leading_comments.is_some())
        .map(|location| {
            (
                location.path.clone(),
                location.leading_comments().to_owned(),
            )
        })
        .collect()
}

struct Writer<'a> {
    comments: BTreeMap<Place, String>,
    types: &'a BTreeMap<String, String>,
}

impl Writer<'_> {
    fn services(&self, file: &FileDescriptorProto) -> Vec<ApiPage> {
        let page = |(at, service): (i32, &prost_types::ServiceDescriptorProto)| {
            let name = service.name();
            let mut text = format!("# {name}\n\n{}", self.comment(&[SERVICES, at]));
            text.push_str("\n| RPC | |\n|---|---|\n");
            for (method, rpc) in (0..).zip(&service.method) {
                let place = [SERVICES, at, METHODS, method];
                let _ = writeln!(
                    text,
                    "| [{}](#{}) | {} |",
                    rpc.name(),
                    rpc.name().to_lowercase(),
                    first_sentence(&cell(&self.plain(&place)))
                );
            }
            for (method, rpc) in (0..).zip(&service.method) {
                let stream = |is_stream: bool| if is_stream { "stream of " } else { "" };
                let _ = write!(
                    text,
                    "\n## {}\n\nRequest: {}{}. Response: {}{}.\n\n{}",
                    rpc.name(),
                    stream(rpc.client_streaming()),
                    self.link(rpc.input_type()),
                    stream(rpc.server_streaming()),
                    self.link(rpc.output_type()),
                    self.comment(&[SERVICES, at, METHODS, method])
                );
            }
            ApiPage {
                title: name.to_owned(),
                file: format!("api-{}.md", name.to_lowercase()),
                text,
            }
        };
        (0..).zip(&file.service).map(page).collect()
    }

    fn messages(&self, file: &FileDescriptorProto) -> Option<ApiPage> {
        if file.message_type.is_empty() && file.enum_type.is_empty() {
            return None;
        }
        let mut text = format!("# Messages of {}\n", file.name());
        for (name, message, place) in all_messages(file) {
            let _ = write!(text, "\n## {name}\n\n{}", self.comment(&place));
            if !message.field.is_empty() {
                text.push_str("\n| field | type | meaning |\n|---|---|---|\n");
            }
            for (at, field) in (0..).zip(&message.field) {
                let place = [&place[..], &[FIELDS, at]].concat();
                let one_of = field
                    .oneof_index
                    .filter(|_| !field.proto3_optional())
                    .and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?))
                    .map(|one_of| format!("One of `{}`. ", one_of.name()));
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {}{} |",
                    field.name(),
                    self.type_of(field, message),
                    one_of.unwrap_or_default(),
                    cell(&self.plain(&place))
                );
            }
        }
        for (name, kind, place) in enums(file) {
            let _ = write!(
                text,
                "\n## {name}\n\n{}\n| value | number | meaning |\n|---|---|---|\n",
                self.comment(&place)
            );
            for (at, value) in (0..).zip(&kind.value) {
                let place = [&place[..], &[VALUES, at]].concat();
                let meaning = cell(&self.plain(&place));
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {meaning} |",
                    value.name(),
                    value.number()
                );
            }
        }
        Some(ApiPage {
            title: format!("Messages: {}", stem(file)),
            file: page_of(file),
            text,
        })
    }

    fn plain(&self, place: &[i32]) -> String {
        let text = self.comments.get(place).map_or("", String::as_str);
        text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
    }

    /// Returns a comment as paragraphs. Lines of status codes become a list, each with the page of its reason.
    fn comment(&self, place: &[i32]) -> String {
        let mut out = String::new();
        let mut is_list = false;
        for line in self.plain(place).lines() {
            let begins = begins_with_code(line);
            let text = if begins {
                with_reason(line)
            } else {
                escaped(line)
            };
            match (begins, is_list) {
                (true, false) => out.push_str("\n- "),
                (true, true) => out.push_str("- "),
                (false, true) if line.is_empty() => {}
                (false, true) => out.push_str("  "),
                (false, false) => {}
            }
            is_list = begins || (is_list && !line.is_empty());
            out.push_str(&text);
            out.push('\n');
        }
        out
    }

    fn link(&self, name: &str) -> String {
        let short = name.trim_start_matches(PACKAGE);
        self.types.get(name).map_or_else(
            || format!("`{}`", name.trim_start_matches('.')),
            |page| format!("[{short}]({page}#{})", kennel_site::pages::anchor(short)),
        )
    }

    fn type_of(&self, field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
        let entry = message.nested_type.iter().find(|inner| {
            inner
                .options
                .as_ref()
                .is_some_and(prost_types::MessageOptions::map_entry)
                && field.type_name().ends_with(&format!(".{}", inner.name()))
        });
        if let Some(entry) = entry {
            let of = |at: usize| {
                entry
                    .field
                    .get(at)
                    .map(|field| self.type_of(field, entry))
                    .unwrap_or_default()
            };
            return format!("map of {} to {}", of(0), of(1));
        }
        let name = match field.r#type() {
            Type::Message | Type::Enum | Type::Group => self.link(field.type_name()),
            scalar => format!("{scalar:?}").to_lowercase(),
        };
        match field.label() {
            Label::Repeated => format!("repeated {name}"),
            _ if field.proto3_optional() => format!("optional {name}"),
            _ => name,
        }
    }
}

/// Whether a line of a comment is about a status code: `NOT_FOUND / RUN_NOT_FOUND: ...`, `UNAVAILABLE without a reason: ...`.
fn begins_with_code(line: &str) -> bool {
    let word = line.split([' ', ':']).next().unwrap_or_default();
    let is_code = word.len() > 3
        && word
            .chars()
            .all(|letter| letter.is_ascii_uppercase() || letter == '_');
    let is_alone = word.contains('_') && line[word.len()..].starts_with(": ");
    let is_paired = line.contains(" / ") || line.contains("without a reason");
    is_code && line.contains(": ") && (is_paired || is_alone)
}

fn with_reason(line: &str) -> String {
    let mut text = escaped(line);
    for reason in Reason::ALL.iter().map(|reason| reason.as_str()) {
        let bare = escaped(reason);
        for (before, after) in [(" / ", ":"), (" / ", " ("), (" / ", " or "), (" or ", ":")] {
            let linked = format!("{before}[{bare}](../docs/errors/{reason}.md){after}");
            text = text.replacen(&format!("{before}{bare}{after}"), &linked, 1);
        }
    }
    text
}

/// Returns a comment as one line of a table.
fn cell(text: &str) -> String {
    escaped(&text.split_whitespace().collect::<Vec<_>>().join(" ")).replace('|', "\\|")
}

fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

/// Escapes text in which only the parts between backticks are markup.
fn escaped(text: &str) -> String {
    let mut is_code = false;
    let mut out = String::new();
    for letter in text.chars() {
        is_code ^= letter == '`';
        if !is_code && matches!(letter, '<' | '*' | '_' | '[') {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_and_message_is_documented() {
        let pages = pages().expect("the contract");
        let all: String = pages.iter().map(|page| page.text.as_str()).collect();
        for heading in [
            "## Spawn",
            "## StreamEvents",
            "## AuditLeaks",
            "## RunSpec",
            "## RunState",
        ] {
            assert!(all.contains(&format!("\n{heading}\n")), "{heading}");
        }
        assert!(
            all.contains("- NOT\\_FOUND / [RUN\\_NOT\\_FOUND](../docs/errors/RUN_NOT_FOUND.md): ")
        );
        assert!(all.contains("| `RUN_STATE_RUNNING` |"));
    }

    #[test]
    fn markup_in_comments_is_escaped_outside_of_code() {
        assert_eq!(escaped("a_b `c_d` <e>"), "a\\_b `c_d` \\<e>");
        assert_eq!(first_sentence("One thing. Another."), "One thing.");
    }
}
