//! Pages as a browser shows them: tables fit a common screen, and texts stand out from their background.

use anyhow::{Context as _, ensure};
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Width of the window, in CSS pixels, sidebar included.
const WIDTH: u32 = 1280;
/// The page that shows all others and writes down their faults.
const VIEWER: &str = include_str!("rendered.html");
const FILE: &str = "rendered.html";
/// Beginning and end of the faults in that page.
const FAULTS: [&str; 2] = ["<pre id=\"faults\">", "</pre>"];

/// Returns the faults of these pages of the book, or nothing where there is no browser.
pub(crate) fn faults(book: &Path, pages: &[PathBuf]) -> anyhow::Result<Option<Vec<String>>> {
    let mut list = String::new();
    for page in pages {
        let _ = write!(list, "{:?},", page.display().to_string());
    }
    let viewer = VIEWER
        .replace("WIDTH", &WIDTH.to_string())
        .replace("PAGES", &list);
    let file = book.join(FILE);
    fs::write(&file, viewer).context("cannot write the page that shows the others")?;
    let profile = book.with_file_name("browser");
    // Virtual time passes as fast as pages load, and ends the wait for a hanging page.
    let done = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        .args(["--allow-file-access-from-files", "--dump-dom"])
        .arg("--virtual-time-budget=3600000")
        .arg(format!(
            "--user-data-dir={}",
            std::path::absolute(&profile)?.display()
        ))
        .arg(format!("file://{}", std::path::absolute(&file)?.display()))
        .output();
    fs::remove_file(&file).context("cannot remove the page that shows the others")?;
    let output = match done {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        done => done.context("cannot start chromium")?,
    };
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let faults = between(&shown)
        .with_context(|| format!("chromium: {}", String::from_utf8_lossy(&output.stderr)))?;
    let mut lines = faults.lines().map(str::to_owned);
    let seen = lines.next().unwrap_or_default();
    ensure!(
        seen == format!("{} pages", pages.len()),
        "the browser showed {seen:?} instead of {} pages",
        pages.len()
    );
    Ok(Some(lines.filter(|line| !line.is_empty()).collect()))
}

/// Returns the text of the faults in the page as it was dumped.
fn between(shown: &str) -> Option<&str> {
    let (_, after) = shown.split_once(FAULTS[0])?;
    after.split_once(FAULTS[1]).map(|(faults, _)| faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_extracted_from_the_dumped_page() {
        let shown = "<html><pre id=\"faults\">2 pages\na: table x | y does not fit</pre></html>";
        assert_eq!(between(shown), Some("2 pages\na: table x | y does not fit"));
        assert_eq!(between("<html></html>"), None);
    }
}
