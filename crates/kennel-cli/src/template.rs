//! Templates over a JSON document, as in `kubectl -o jsonpath` and `docker --format`: text with paths in it.

use serde_json::Value;
use serde_json_path::JsonPath;

/// Answer to loops over documents.
const ONCE_EACH: &str = "leave range, end and .items out: the template is filled once for each run";

/// Text with placeholders that a document fills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    /// The value at a path: as typed, or else as proto3 JSON spells its names.
    Path(JsonPath, JsonPath),
    /// The document itself.
    Whole,
}

impl Template {
    /// Parses `{.runId}{"\t"}{.labels.app}`; without braces the whole is one path.
    pub(crate) fn json_path(text: &str) -> Result<Self, String> {
        if !text.contains('{') {
            return Ok(Self {
                parts: vec![path(text)?],
            });
        }
        let inner = |code: &str| match code.strip_prefix('"').and_then(|c| c.strip_suffix('"')) {
            Some(text) => Ok(TemplatePart::Text(unescaped(text))),
            None if code == "end" || code.starts_with("range ") => Err(ONCE_EACH.to_owned()),
            None => path(code),
        };
        parts(text, "{", "}", inner)
    }

    /// Parses `{{.runId}} {{.labels.app}}` and `{{json .}}`: fields of a Go template, without its functions.
    pub(crate) fn go(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix("table ").unwrap_or(text);
        let inner = |code: &str| match code {
            "json ." | "." => Ok(TemplatePart::Whole),
            code if code.starts_with('.') && !code.contains(char::is_whitespace) => path(code),
            code => Err(format!(
                "{{{{{code}}}}} is not a field such as {{{{.state}}}}: for more, pipe -o json into jq"
            )),
        };
        parts(&unescaped(text), "{{", "}}", inner)
    }

    /// Renders a document. A missing field is empty.
    pub(crate) fn render(&self, document: &Value) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(part) => text.push_str(part),
                TemplatePart::Whole => text.push_str(&document.to_string()),
                TemplatePart::Path(typed, spelt) => {
                    let mut found = typed.query(document).all();
                    if found.is_empty() {
                        found = spelt.query(document).all();
                    }
                    let values: Vec<String> = found.into_iter().map(plain).collect();
                    text.push_str(&values.join(" "));
                }
            }
        }
        text
    }
}

fn parts(
    text: &str,
    open: &str,
    close: &str,
    inner: impl Fn(&str) -> Result<TemplatePart, String>,
) -> Result<Template, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(open) {
        let (code, after) = behind
            .split_once(close)
            .ok_or_else(|| format!("{open:?} has no {close:?}"))?;
        if !before.is_empty() {
            parts.push(TemplatePart::Text(before.to_owned()));
        }
        parts.push(inner(code.trim())?);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(TemplatePart::Text(rest.to_owned()));
    }
    Ok(Template { parts })
}

/// Parses `.a.b[0]`, with or without a leading `$`.
fn path(typed: &str) -> Result<TemplatePart, String> {
    let bare = typed.trim_start_matches(['$', '@']);
    if bare.starts_with(".items") {
        return Err(ONCE_EACH.to_owned());
    }
    let bare = if bare.is_empty() || bare.starts_with(['.', '[']) {
        bare.to_owned()
    } else {
        format!(".{bare}")
    };
    let read = |path: &str| {
        let whole = if path == "." {
            "$".to_owned()
        } else {
            format!("${path}")
        };
        JsonPath::parse(&whole).map_err(|wrong| format!("{typed:?} is no path: {wrong}"))
    };
    Ok(TemplatePart::Path(read(&bare)?, read(&spelt(&bare))?))
}

/// Spells names as proto3 JSON does: `run_id`, `RunId` and docker's `ID` are `runId`. Quoted text stays.
fn spelt(path: &str) -> String {
    let mut spelt = String::new();
    let (mut quote, mut begins, mut upper) = (None, false, false);
    for c in path.chars() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None, '_') => {
                upper = true;
                continue;
            }
            _ => {}
        }
        let c = match quote {
            None if begins => c.to_ascii_lowercase(),
            None if upper => c.to_ascii_uppercase(),
            _ => c,
        };
        (begins, upper) = (quote.is_none() && c == '.', false);
        spelt.push(c);
    }
    match spelt.as_str() {
        ".iD" | ".id" | ".name" | ".metadata.name" => ".runId".to_owned(),
        ".status" | ".state.status" | ".status.phase" => ".state".to_owned(),
        ".state.exitCode" => ".currentAttempt.exit.code".to_owned(),
        ".state.pid" => ".currentAttempt.pid".to_owned(),
        ".metadata.labels" => ".labels".to_owned(),
        ".createdAt" | ".created" => ".createTime".to_owned(),
        ".names" => ".labels.name".to_owned(),
        ".command" => ".spec.argv.args".to_owned(),
        _ => spelt,
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Replaces `\t` and `\n` by tab and newline.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

/// Formats a document as YAML: objects and lists in blocks, and all text in the quotes of JSON, which YAML reads too.
pub(crate) fn yaml(document: &Value) -> String {
    match document {
        Value::Object(fields) if !fields.is_empty() => {
            let field = |(name, value): (&String, &Value)| {
                let (name, below) = (key(name), yaml(value));
                if is_block(value) {
                    format!("{name}:\n  {}\n", indented(&below))
                } else {
                    format!("{name}: {below}")
                }
            };
            fields.iter().map(field).collect()
        }
        Value::Array(items) if !items.is_empty() => {
            let item = |item| format!("- {}\n", indented(&yaml(item)));
            items.iter().map(item).collect()
        }
        scalar => format!("{scalar}\n"),
    }
}

fn is_block(value: &Value) -> bool {
    let items = value.as_array().map(Vec::len);
    let fields = value.as_object().map(serde_json::Map::len);
    items.or(fields).is_some_and(|len| len > 0)
}

/// Returns lines that follow the first one two spaces further in.
fn indented(block: &str) -> String {
    block.replace('\n', "\n  ").trim_end().to_owned()
}

/// Formats a key without quotes, where YAML can only take it for text.
fn key(name: &str) -> String {
    let is_word = name.bytes().all(|b| b.is_ascii_alphanumeric()) && name.len() > 3;
    let reserved = ["null", "true", "false"].contains(&name.to_ascii_lowercase().as_str());
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    if is_word && begins && !reserved {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn document() -> Value {
        json!({"runId": "R", "state": "S", "labels": {"a_b": "x", "c.d/e": "y"}, "n": [1, {"k": "v"}], "e": {}})
    }

    // promise: C-44
    #[test]
    fn kubectl_jsonpath_fills_a_template() {
        for (text, shown) in [
            ("{.runId}", "R"),
            (".state", "S"),
            ("state", "S"),
            ("{$.n[1].k}", "v"),
            ("{.run_id}{\"\\t\"}{.labels.a_b}", "R\tx"),
            ("{.labels['c.d/e']}", "y"),
            ("{.n[0]} {.missing}.", "1 ."),
            ("{.labels}", "{\"a_b\":\"x\",\"c.d/e\":\"y\"}"),
        ] {
            let template = Template::json_path(text).expect(text);
            assert_eq!(template.render(&document()), shown, "{text}");
        }
        for text in ["{.a", "{.a[}", "{range .items[*]}"] {
            assert!(Template::json_path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn docker_format_fields_fill_a_template() {
        for (text, shown) in [
            ("{{.ID}}\\t{{.State}}", "R\tS"),
            ("table {{ .runId }}", "R"),
            ("{{.labels.a_b}}", "x"),
        ] {
            let template = Template::go(text).expect(text);
            assert_eq!(template.render(&document()), shown, "{text}");
        }
        let whole = Template::go("{{json .}}").expect("a template");
        assert_eq!(whole.render(&document()), document().to_string());
        assert!(Template::go("{{range .Mounts}}x{{end}}").is_err());
    }

    #[test]
    fn yaml_output_has_blocks_and_quoted_strings() {
        assert_eq!(
            yaml(&document()),
            "\"e\": {}\nlabels:\n  \"a_b\": \"x\"\n  \"c.d/e\": \"y\"\n\"n\":\n  - 1\n  - \"k\": \"v\"\nrunId: \"R\"\nstate: \"S\"\n"
        );
        assert_eq!(yaml(&json!([])), "[]\n");
        assert_eq!(
            yaml(&json!({"list": [[1, 2]]})),
            "list:\n  - - 1\n    - 2\n"
        );
    }
}
