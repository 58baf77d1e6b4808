//! The folders of a crate: imports form no circle, and those of the supervisor point downwards only.

use super::source::{Source, code_lines, shipped};
use std::collections::{BTreeMap, BTreeSet};

/// The rooms of the supervisor, the lowest first.
const FLOORS: [&str; 9] = [
    "base",
    "telemetry",
    "record",
    "audit_log",
    "registry",
    "streams",
    "run",
    "node",
    "api",
];

/// Folders of one crate, each with the folders that it imports from and one such file.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the crate and the top module of a source file.
fn place(path: &str) -> Option<(&str, &str)> {
    let (krate, inside) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let module = inside.split_once('/').map_or(inside, |(folder, _)| folder);
    Some((krate, module.strip_suffix(".rs").unwrap_or(module)))
}

/// Returns the first names of all paths that begin with `crate::`.
fn imported(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, begin) in text.match_indices("crate::") {
        let is_whole = !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if is_whole {
            take_names(&text[at + begin.len()..], &mut found);
        }
    }
    found
}

/// Takes one name, or the first names of a group in braces.
fn take_names(rest: &str, found: &mut BTreeSet<String>) {
    let name = |text: &str| -> String {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let Some(group) = rest.strip_prefix('{') else {
        found.insert(name(rest));
        return;
    };
    let (mut depth, mut begins) = (0, true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && !c.is_whitespace() => {
                found.insert(name(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
}

fn imports(sources: &[Source]) -> BTreeMap<String, Imports> {
    let mut crates: BTreeMap<String, Imports> = BTreeMap::new();
    let mut folders: BTreeSet<(&str, &str)> = BTreeSet::new();
    for source in sources {
        let Some((krate, module)) = place(&source.path) else {
            continue;
        };
        if source.path.contains(&format!("/src/{module}/")) {
            folders.insert((krate, module));
        }
        let modules = crates.entry(krate.to_owned()).or_default();
        let uses = modules.entry(module.to_owned()).or_default();
        let code: Vec<&str> = code_lines(&source.text).map(|(_, line)| line).collect();
        for name in imported(&code.join("\n")) {
            uses.entry(name).or_insert_with(|| source.path.clone());
        }
    }
    for (krate, modules) in &mut crates {
        let is_folder = |name: &str| folders.contains(&(krate.as_str(), name));
        modules.retain(|module, _| is_folder(module));
        for (module, uses) in modules {
            uses.retain(|used, _| is_folder(used) && used != module);
        }
    }
    crates
}

/// Returns folders that can be reached from themselves.
fn circles(krate: &str, folders: &Imports) -> Vec<String> {
    let reaches = |from: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(folder) = open.pop() {
            for used in folders.get(&folder).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(used.clone()) {
                    open.push(used.clone());
                }
            }
        }
        seen
    };
    let in_circle = folders
        .keys()
        .filter(|folder| reaches(folder).contains(*folder));
    in_circle
        .map(|folder| format!("{krate}/{folder} imports itself over {:?}", folders[folder]))
        .collect()
}

/// Returns imports of the supervisor from a higher floor, and folders that are on none.
fn arrows_up(folders: &Imports) -> Vec<String> {
    let floor = |folder: &str| FLOORS.iter().position(|name| *name == folder);
    let mut wrong = Vec::new();
    for (folder, uses) in folders {
        let Some(own) = floor(folder) else {
            wrong.push(format!("{folder} is on no floor"));
            continue;
        };
        let up = uses
            .iter()
            .filter(|(used, _)| floor(used).is_none_or(|used| used > own));
        wrong.extend(up.map(|(used, file)| format!("{file} imports from {used}")));
    }
    wrong
}

#[test]
fn no_circle_of_imports_across_folders() {
    let crates = imports(&shipped());
    let found: Vec<String> = crates
        .iter()
        .flat_map(|(krate, folders)| circles(krate, folders))
        .collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn supervisor_imports_point_downwards() {
    let crates = imports(&shipped());
    assert_eq!(arrows_up(&crates["supervisor"]), Vec::<String>::new());
    assert_eq!(crates["supervisor"].len(), FLOORS.len());
}

#[test]
fn planted_circle_and_arrow_are_seen() {
    let file = |path: &str, text: &str| Source {
        path: format!("crates/supervisor/src/{path}"),
        text: text.to_owned(),
    };
    let sources = [
        file(
            "base/clock.rs",
            "use crate::{\n    node::{boot, x},\n    run,\n};\n",
        ),
        file(
            "node/boot.rs",
            "// crate::api\nfn f() { crate::base::clock::now() }\n",
        ),
        file(
            "run/task.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::api;\n}\n",
        ),
    ];
    let crates = imports(&sources);
    let folders = &crates["supervisor"];
    assert_eq!(circles("supervisor", folders).len(), 2);
    assert_eq!(
        arrows_up(folders),
        [
            "crates/supervisor/src/base/clock.rs imports from node",
            "crates/supervisor/src/base/clock.rs imports from run",
        ]
    );
}
