//! A wall clock of a server's own, which a test sets while it serves. Clocks that count from the boot on stay as they are.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// The clock of all processes of one server.
#[derive(Debug)]
pub struct WallClock {
    file: File,
    path: PathBuf,
    library: PathBuf,
}

impl WallClock {
    /// Makes one that goes as the host's; its files are in this directory.
    ///
    /// # Panics
    /// If there is no C compiler, which a linker for Rust is part of.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        let (source, library) = (dir.join("wall_clock.c"), dir.join("wall_clock.so"));
        fs::write(&source, include_str!("wall_clock.c")).expect("own directory");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let made = compiler.arg(&library).arg(&source).status();
        assert!(made.expect("cc starts").success(), "the clock is compiled");
        let path = dir.join("wall_clock");
        fs::write(&path, 0_i64.to_ne_bytes()).expect("own directory");
        let file = File::options().write(true).open(&path);
        let file = file.expect("own directory");
        Self {
            file,
            path,
            library,
        }
    }

    /// Returns the variables with which a process has this clock.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let variables = [
            ("LD_PRELOAD", &self.library),
            ("KENNEL_TEST_CLOCK", &self.path),
        ];
        let text = |(name, path): (&str, &PathBuf)| (name.to_owned(), path.display().to_string());
        variables.map(text).into()
    }

    /// Sets it so many seconds ahead of the host's.
    ///
    /// # Panics
    /// If its file is gone.
    pub fn set(&self, ahead: i64) {
        let written = self.file.write_all_at(&ahead.to_ne_bytes(), 0);
        written.expect("own file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    fn now(clock: &WallClock) -> SystemTime {
        let said = Command::new("date")
            .arg("+%s")
            .envs(clock.variables())
            .output();
        let said = String::from_utf8(said.expect("date starts").stdout).expect("a number");
        let seconds = said.trim().parse().expect("a number");
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn processes_see_the_shifted_wall_clock() {
        let dir = tempfile::tempdir().expect("a directory");
        let clock = WallClock::new(dir.path());
        let half = Duration::from_mins(30);
        clock.set(3600);
        assert!(now(&clock) > SystemTime::now() + half);
        clock.set(-3600);
        assert!(now(&clock) < SystemTime::now() - half);
    }
}
