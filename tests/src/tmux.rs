//! A terminal of another project, to check what a client shows on it: tmux(1), one server per terminal.

use crate::{PATIENCE, eventually};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// A terminal in which one command runs. Ended with all that is in it when it is dropped.
#[derive(Debug)]
pub struct Tmux {
    socket: PathBuf,
}

impl Tmux {
    /// Starts a terminal of `rows` lines of `cols` characters in which a shell line runs; its socket is in `dir`.
    ///
    /// # Panics
    /// If tmux cannot be run.
    #[must_use]
    pub fn start(dir: &Path, name: &str, (rows, cols): (u16, u16), line: &str) -> Self {
        let tmux = Self {
            socket: dir.join(name),
        };
        let (rows, cols) = (rows.to_string(), cols.to_string());
        // Without `sleep`, the last frame disappears with the command.
        let line = format!("{line}; sleep 1000");
        tmux.run(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &cols,
            "-y",
            &rows,
            &line,
        ]);
        tmux.run(&["set", "-g", "status", "off"]);
        tmux
    }

    /// Types keys, as send-keys does: `Enter`, `C-p`, or text.
    ///
    /// # Panics
    /// If tmux cannot be run.
    pub fn keys(&self, keys: &[&str]) {
        let mut words = vec!["send-keys"];
        words.extend_from_slice(keys);
        self.run(&words);
    }

    /// Returns its screen, line by line, without empty lines at the end.
    ///
    /// # Panics
    /// If tmux cannot be run.
    #[must_use]
    pub fn shown(&self) -> String {
        let output = self.run(&["capture-pane", "-p"]);
        let text = String::from_utf8(output.stdout).expect("tmux writes UTF-8");
        text.trim_end().to_owned()
    }

    /// Returns its screen with the escape sequences of its colours.
    ///
    /// # Panics
    /// If tmux cannot be run.
    #[must_use]
    pub fn shown_in_colour(&self) -> String {
        let output = self.run(&["capture-pane", "-p", "-e"]);
        String::from_utf8(output.stdout).expect("tmux writes UTF-8")
    }

    /// Waits until it shows this text, and returns its screen then.
    ///
    /// # Panics
    /// If it never does.
    pub async fn shows(&self, text: &str) -> String {
        let shown = || Some(self.shown()).filter(|shown| shown.contains(text));
        eventually(&format!("{text:?} is shown"), PATIENCE, shown).await
    }

    /// Whether its program gets clicks.
    ///
    /// # Panics
    /// If tmux cannot be run.
    #[must_use]
    pub fn mouse_is_captured(&self) -> bool {
        self.variable("mouse_any_flag") == "1"
    }

    /// Returns a variable of its pane, by the names in tmux(1).
    ///
    /// # Panics
    /// If tmux cannot be run.
    #[must_use]
    pub fn variable(&self, name: &str) -> String {
        let output = self.run(&["display-message", "-p", &format!("#{{{name}}}")]);
        let value = String::from_utf8(output.stdout).expect("tmux writes UTF-8");
        value.trim_end().to_owned()
    }

    /// Resizes it.
    ///
    /// # Panics
    /// If tmux cannot be run.
    pub fn resize(&self, (rows, cols): (u16, u16)) {
        let (rows, cols) = (rows.to_string(), cols.to_string());
        self.run(&["resize-window", "-x", &cols, "-y", &rows]);
    }

    /// Closes its window, as a person does: its program is hung up.
    ///
    /// # Panics
    /// If tmux cannot be run.
    pub fn close(&self) {
        self.run(&["kill-window"]);
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command
            .arg("-S")
            .arg(&self.socket)
            .args(words)
            .env_remove("TMUX");
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
        output
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = Command::new("tmux")
                .arg("-S")
                .arg(&self.socket)
                .args(["capture-pane", "-p"])
                .output();
            let shown = shown.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            eprintln!(
                "--- what {} shows ---\n{}",
                self.socket.display(),
                shown.unwrap_or_default().trim_end()
            );
        }
        // The tmux server may have exited.
        let _ = Command::new("tmux")
            .arg("-S")
            .arg(&self.socket)
            .arg("kill-server")
            .output();
    }
}
