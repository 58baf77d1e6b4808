//! Circles of files in a crate: files that reach each other by the names that they use.
//!
//! A name counts for the file that defines it, over re-exports. A module and the modules below it are one thing: names
//! that they take from each other do not count.

use super::source::{Source, code_lines, shipped};
use std::collections::{BTreeMap, BTreeSet};

/// Circles that stand, by crate and their first file, and what ends each.
const STANDING: [(&str, &str, &str); 6] = [
    ("keeper", "exit_record", "a keeper that replaces itself"),
    ("keeper", "shim::alone", "small owners of the shim"),
    (
        "kennel",
        "args",
        "nothing: flags, file and variables say one thing",
    ),
    (
        "kennel-cli",
        "args::flags",
        "nothing: a flag completes itself by a call, whose command has flags",
    ),
    (
        "store",
        "change",
        "nothing: both databases and what they share",
    ),
    (
        "supervisor",
        "record::frames",
        "entries that their origin numbers",
    ),
];

type Path = Vec<String>;

/// A module, which is a file.
#[derive(Debug, Default)]
struct Module {
    text: String,
    defined: BTreeSet<String>,
    /// Imported names, each with its path as it is written.
    imports: BTreeMap<String, Path>,
}

/// The modules of one crate by their paths.
type Modules = BTreeMap<Path, Module>;

fn crates(sources: &[Source]) -> BTreeMap<String, Modules> {
    let mut crates: BTreeMap<String, Modules> = BTreeMap::new();
    for source in sources {
        let inside = source.path.strip_prefix("crates/");
        let Some((krate, file)) = inside.and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        let file = file.strip_suffix(".rs").unwrap_or(file);
        let mut path: Path = file.split('/').map(str::to_owned).collect();
        if path
            .last()
            .is_some_and(|last| ["mod", "lib", "main"].contains(&&**last))
        {
            path.pop();
        }
        let modules = crates.entry(krate.to_owned()).or_default();
        modules.insert(path, module(&source.text));
    }
    crates
}

fn module(text: &str) -> Module {
    let mut module = Module::default();
    let mut import: Option<String> = None;
    let mut is_tagged = false;
    for (_, line) in code_lines(text) {
        let trimmed = line.trim();
        // Enums inside `tagged!` count like plain ones.
        is_tagged = match line {
            "}" => false,
            line => is_tagged || !line.starts_with(' ') && line.ends_with("tagged! {"),
        };
        let may_import = trimmed.starts_with("use ") || trimmed.starts_with("pub");
        let declared = trimmed.split_once("use ").filter(|_| may_import);
        let more = match (&mut import, declared) {
            (Some(open), _) => {
                open.push_str(trimmed);
                true
            }
            (None, Some((_, path))) => {
                import = Some(path.to_owned());
                true
            }
            (None, None) => false,
        };
        if !more {
            let inside = line.strip_prefix("    ").filter(|_| is_tagged);
            module.defined.extend(defined(inside.unwrap_or(line)));
            module.text.push_str(line);
            module.text.push('\n');
        } else if trimmed.ends_with(';') {
            let path = import.take().unwrap_or_default();
            take_imports(&[], path.trim_end_matches(';'), &mut module.imports);
        }
    }
    module
}

/// Returns the name that a line without indentation defines.
fn defined(line: &str) -> Option<String> {
    const KINDS: [&str; 8] = [
        "struct",
        "enum",
        "trait",
        "type",
        "fn",
        "const",
        "static",
        "macro_rules!",
    ];
    if line.starts_with(' ') {
        return None;
    }
    let mut words = line
        .split_whitespace()
        .skip_while(|word| !KINDS.contains(word));
    let name = words.find(|word| !KINDS.contains(word))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(name[..end.unwrap_or(name.len())].to_owned())
}

/// Takes the names of an import apart: paths, groups in braces, and other names.
fn take_imports(before: &[&str], import: &str, into: &mut BTreeMap<String, Path>) {
    let import = import.trim();
    if let Some((path, group)) = import.split_once('{') {
        let mut before = before.to_vec();
        before.extend(
            path.split("::")
                .map(str::trim)
                .filter(|part| !part.is_empty()),
        );
        let group = group.strip_suffix('}').unwrap_or(group);
        let (mut depth, mut begin) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    take_imports(&before, &group[begin..at], into);
                    begin = at + 1;
                }
                _ => {}
            }
        }
        return take_imports(&before, &group[begin..], into);
    }
    let (path, name) = import.split_once(" as ").unwrap_or((import, ""));
    let parts = path
        .split("::")
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let mut path: Path = before
        .iter()
        .copied()
        .chain(parts)
        .map(str::to_owned)
        .collect();
    path.pop_if(|last| last == "self");
    let Some(last) = path.last().filter(|_| !import.is_empty()) else {
        return;
    };
    let name = if name.is_empty() { last } else { name };
    into.insert(name.to_owned(), path);
}

/// Returns the module that defines what a path names in a module. `None`: it is a module, or of another crate.
fn owner(modules: &Modules, at: &Path, path: &[String], steps: usize) -> Option<Path> {
    let module = modules.get(at)?;
    let (first, rest) = path.split_first()?;
    let below = || at.iter().chain([first]).cloned().collect::<Path>();
    // Mutual imports of one name would recurse without end.
    let steps = steps.checked_sub(1)?;
    match &**first {
        "crate" => owner(modules, &Path::new(), rest, steps),
        "self" => owner(modules, at, rest, steps),
        "super" => owner(
            modules,
            &at[..at.len().checked_sub(1)?].to_vec(),
            rest,
            steps,
        ),
        _ if modules.contains_key(&below()) => owner(modules, &below(), rest, steps),
        name if module.defined.contains(name) => Some(at.clone()),
        name => {
            let import = module.imports.get(name)?;
            let path: Path = import.iter().chain(rest).cloned().collect();
            owner(modules, at, &path, steps)
        }
    }
}

/// Returns the paths in a text, each once: names with `::` between them.
fn paths(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_part(c)).collect()
}

/// Returns the modules that each module uses, those above and below it excepted.
fn uses(modules: &Modules) -> BTreeMap<&Path, BTreeSet<Path>> {
    let of = |(at, module): (_, &Module)| {
        let split = |path: &str| -> Path { path.split("::").map(str::to_owned).collect() };
        // A plain word that was not imported belongs to this module.
        let is_use = |path: &&str| path.contains("::") || module.imports.contains_key(*path);
        let paths = paths(&module.text).into_iter().filter(is_use).map(split);
        let owners = paths.filter_map(|path| owner(modules, at, &path, 20));
        let others = owners.filter(|other| !other.starts_with(at) && !at.starts_with(other));
        (at, others.collect())
    };
    modules.iter().map(of).collect()
}

/// Returns the modules that this one reaches.
fn reached<'a>(uses: &'a BTreeMap<&Path, BTreeSet<Path>>, from: &'a Path) -> BTreeSet<&'a Path> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(at) = open.pop() {
        let direct = uses.get(at).into_iter().flatten();
        open.extend(direct.filter(|used| seen.insert(*used)));
    }
    seen
}

/// Returns the first file of each circle.
fn circles(modules: &Modules) -> BTreeSet<String> {
    let uses = uses(modules);
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        uses.keys().map(|at| (*at, reached(&uses, at))).collect();
    let first = |at: &Path| {
        let mut circle = reached[at]
            .iter()
            .filter(|other| reached[**other].contains(at));
        circle.next().map(|first| first.join("::"))
    };
    uses.keys().filter_map(|at| first(at)).collect()
}

#[test]
fn only_listed_module_cycles_exist() {
    let crates = crates(&shipped());
    let mut found = BTreeSet::new();
    for (krate, modules) in &crates {
        found.extend(
            circles(modules)
                .into_iter()
                .map(|first| (krate.clone(), first)),
        );
    }
    let known = STANDING.map(|(krate, first, _)| (krate.to_owned(), first.to_owned()));
    assert_eq!(found, BTreeSet::from(known));
}

#[test]
fn planted_module_cycle_is_detected() {
    let file = |path: &str, text: &str| Source {
        path: format!("crates/x/src/{path}"),
        text: text.to_owned(),
    };
    let sources = [
        file("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::{B, self};\n"),
        file("a.rs", "use crate::B;\npub struct A(B);\n"),
        file(
            "b.rs",
            "use super::{c::{self}, a};\npub struct B;\nfn f(_: c::C) {}\n",
        ),
        file("c.rs", "use crate::{\n    a::A,\n};\npub struct C(A);\n"),
        file("c/d.rs", "use super::C;\nfn f(_: C) {}\n"),
    ];
    let crates_of = crates;
    let whole = crates_of(&sources);
    assert_eq!(circles(&whole["x"]), BTreeSet::from(["a".to_owned()]));
    let open = crates_of(&sources[..3]);
    assert_eq!(circles(&open["x"]), BTreeSet::new());
}
