//! Sizes of types that own state: one with methods that change it is read as a whole.

use super::source::{Source, code_lines, shipped};
use std::collections::BTreeMap;

/// Most fields of a type with methods that change it.
const FIELDS_MAX: usize = 20;
/// Most methods of such a type.
const METHODS_MAX: usize = 60;

/// Types that are larger, with their present numbers of fields and methods, which only sink, and what ends that.
const LARGER: [(&str, usize, usize, &str); 6] = [
    (
        "supervisor::RunTask",
        17,
        152,
        "entries that their origin numbers",
    ),
    ("keeper::Keeper", 43, 89, "a keeper that replaces itself"),
    ("keeper::Run", 40, 148, "a keeper that replaces itself"),
    ("keeper::Work", 30, 57, "small owners of the shim"),
    (
        "edge::NodesReader",
        23,
        18,
        "lists of runs that are watched",
    ),
    (
        "lifecycle::AttemptRecord",
        22,
        12,
        "nothing: it is the shape of a record",
    ),
];

#[derive(Debug, Default)]
struct Size {
    fields: usize,
    methods: usize,
    changes: bool,
}

/// Returns the sizes of all types, by crate and name.
fn sizes(sources: &[Source]) -> BTreeMap<String, Size> {
    let mut sizes: BTreeMap<String, Size> = BTreeMap::new();
    for source in sources {
        let Some(krate) = source.path.strip_prefix("crates/") else {
            continue;
        };
        let krate = krate.split('/').next().unwrap_or_default();
        // The current type, and whether it is a struct.
        let mut open: Option<(String, bool)> = None;
        let mut fields = 0;
        for (_, line) in code_lines(&source.text) {
            let declared = line
                .trim_start_matches("pub ")
                .trim_start_matches("pub(crate) ");
            let declared = declared.trim_start_matches("pub(super) ");
            if let Some(name) = declared
                .strip_prefix("struct ")
                .filter(|l| l.ends_with('{'))
            {
                fields = 0;
                open = Some((type_name(krate, name), true));
            } else if line.starts_with("impl") && line.ends_with('{') && !line.contains(" for ") {
                let name = line.trim_start_matches("impl");
                let name = if name.starts_with('<') {
                    name.split_once("> ").map_or(name, |(_, name)| name)
                } else {
                    name
                };
                open = Some((type_name(krate, name.trim()), false));
            } else if line.starts_with('}') {
                open = None;
            } else if let (Some((name, is_struct)), Some(inside)) =
                (&open, line.strip_prefix("    "))
            {
                let size = sizes.entry(name.clone()).or_default();
                let is_direct = !inside.starts_with([' ', '#', ')', '}']);
                if *is_struct {
                    fields += usize::from(is_direct && inside.contains(": "));
                    // If two types share a name, the larger counts.
                    size.fields = size.fields.max(fields);
                }
                size.methods += usize::from(!is_struct && is_direct && inside.contains("fn "));
                size.changes |= !is_struct && line.contains("mut self");
            }
        }
    }
    sizes
}

fn type_name(krate: &str, text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    format!("{krate}::{}", &text[..end.unwrap_or(text.len())])
}

/// Returns the types that are larger than they may be, and the exceptions that are not needed any more.
fn too_large(sources: &[Source], larger: &[(&str, usize, usize, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let sizes = sizes(sources);
    for (name, size) in sizes.iter().filter(|(_, size)| size.changes) {
        let (fields, methods) = (size.fields, size.methods);
        let exception = larger.iter().find(|(of, ..)| of == name);
        let (most_fields, most_methods) = match exception {
            Some((_, fields, methods, _)) => (FIELDS_MAX.max(*fields), METHODS_MAX.max(*methods)),
            None => (FIELDS_MAX, METHODS_MAX),
        };
        if fields > most_fields || methods > most_methods {
            wrong.push(format!("{name} has {fields} fields and {methods} methods"));
        } else if exception.is_some() && fields <= FIELDS_MAX && methods <= METHODS_MAX {
            wrong.push(format!("{name} is small: no exception is needed"));
        }
    }
    let gone = larger
        .iter()
        .filter(|(name, ..)| !sizes.contains_key(*name));
    wrong.extend(gone.map(|(name, ..)| format!("{name} is not there")));
    wrong
}

#[test]
fn state_owning_types_are_small() {
    assert_eq!(too_large(&shipped(), &LARGER), Vec::<String>::new());
}

#[test]
fn planted_large_type_is_detected() {
    let fields = "    x: u8,\n".repeat(21);
    let methods = "    fn f(&mut self) {}\n".repeat(61);
    let text = format!(
        "struct Wide {{\n{fields}}}\n\nimpl Wide {{\n    fn f(&mut self) {{}}\n}}\n\nstruct Long {{\n    x: u8,\n}}\n\nimpl<'a> Long {{\n{methods}}}\n\nstruct Data {{\n{fields}}}\n"
    );
    let source = Source {
        path: "crates/edge/src/x.rs".to_owned(),
        text,
    };
    let larger = [("edge::Gone", 30, 30, "")];
    assert_eq!(
        too_large(&[source], &larger),
        [
            "edge::Long has 1 fields and 61 methods",
            "edge::Wide has 21 fields and 1 methods",
            "edge::Gone is not there",
        ]
    );
}
