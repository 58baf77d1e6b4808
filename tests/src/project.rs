//! Projects that are written out in a page of the documentation.

use std::{fs, path::Path};

/// Contents of a page: files, each named in the line above its block, and commands.
#[derive(Debug)]
pub struct Project {
    /// Name and text of each file, in the page's order.
    pub files: Vec<(String, String)>,
    /// Blocks of shell commands, in the page's order.
    pub commands: Vec<String>,
}

impl Project {
    /// Reads a page of the repository.
    ///
    /// # Panics
    /// If it cannot be read, or a block does not end.
    #[must_use]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mut project = Self {
            files: Vec::new(),
            commands: Vec::new(),
        };
        let mut above = "";
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(language) = line.strip_prefix("```") else {
                if !line.is_empty() {
                    above = line;
                }
                continue;
            };
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let block = block.join("\n") + "\n";
            match (file_name(above), language) {
                (_, "sh") => project.commands.push(block),
                (Some(name), _) => project.files.push((name.to_owned(), block)),
                (None, _) => {}
            }
            above = "";
        }
        project
    }

    /// Writes its files below a directory.
    ///
    /// # Panics
    /// If one cannot be written.
    pub fn write_files(&self, dir: &Path) {
        for (name, text) in &self.files {
            let path = dir.join(name);
            let parent = path.parent().expect("a file has a directory");
            fs::create_dir_all(parent).expect("a directory can be made");
            fs::write(path, text).expect("a file can be written");
        }
    }
}

/// Returns the name in backquotes at the end of a line.
fn file_name(line: &str) -> Option<&str> {
    let (_, name) = line.strip_suffix('`')?.rsplit_once('`')?;
    name.contains('.').then_some(name)
}
