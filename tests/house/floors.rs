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

/// The blocks `impl Supervisor` of a text.
fn supervisor_blocks(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("\nimpl Supervisor {").skip(1);
    blocks.map(|block| block.split_once("\n}\n").map_or(block, |(block, _)| block))
}

/// Returns the names that follow this text, each before an opening parenthesis.
fn called<'a>(text: &'a str, on: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(on).skip(1).filter_map(|rest| {
        let (name, _) = rest.split_once('(')?;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        name.chars().all(is_name).then_some(name)
    })
}

/// Returns calls of the supervisor's methods from below the floor of their file.
fn calls_up(sources: &[Source]) -> Vec<String> {
    let mut texts = Vec::new();
    for source in sources {
        let Some(("supervisor", folder)) = place(&source.path) else {
            continue;
        };
        let mut text = String::new();
        for (_, line) in code_lines(&source.text) {
            // A method chain may span several lines.
            let (gap, line) = match line.trim_start() {
                rest if rest.starts_with('.') => ("", rest),
                _ => ("\n", line),
            };
            text.push_str(gap);
            text.push_str(line);
        }
        let floor = FLOORS.iter().position(|name| *name == folder);
        texts.push((floor, &source.path, text));
    }
    let mut floors = BTreeMap::new();
    for (floor, _, text) in &texts {
        for block in supervisor_blocks(text) {
            floors.extend(called(block, "fn ").map(|name| (name.to_owned(), *floor)));
        }
    }
    let mut wrong = Vec::new();
    for (floor, path, text) in &texts {
        let own = supervisor_blocks(text).flat_map(|block| called(block, "self."));
        for name in own.chain(called(text, "supervisor.")) {
            if floors.get(name).is_some_and(|of| of > floor) {
                wrong.push(format!("{path} calls {name} of a higher floor"));
            }
        }
    }
    wrong
}

#[test]
fn no_import_cycles_across_folders() {
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
fn supervisor_calls_point_downwards() {
    assert_eq!(calls_up(&shipped()), Vec::<String>::new());
}

#[test]
fn planted_cycle_and_upward_import_are_detected() {
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
    let file = |path: &str, text: &str| Source {
        path: format!("crates/supervisor/src/{path}"),
        text: format!("\nimpl Supervisor {{\n{text}\n}}\n"),
    };
    let sources = [
        file("api/reads.rs", "    pub fn info(&self) {}"),
        file("node/boot.rs", "    fn boot(&self) { self\n    .info(); }"),
        file(
            "run/input.rs",
            "    fn f(&self) { supervisor.boot(); self.f() }",
        ),
    ];
    assert_eq!(
        calls_up(&sources),
        [
            "crates/supervisor/src/node/boot.rs calls info of a higher floor",
            "crates/supervisor/src/run/input.rs calls boot of a higher floor",
        ]
    );
}
