//! The cluster that initdb makes, made once for each target directory and unpacked for each test: a fifth of the time.
//! The tests of the store include this file too.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

/// Makes the cluster in `data` that initdb of these binaries makes with these words, as this user and group.
pub(crate) fn unpack(
    binaries: &Path,
    owner: Option<(u32, u32)>,
    words: &[&str],
    data: &Path,
) -> io::Result<()> {
    let template = template(binaries, owner, words)?;
    fs::create_dir(data)?;
    let mut tar = Command::new("tar");
    tar.arg("-xpf").arg(template).arg("-C").arg(data);
    run(tar)
}

/// Returns the path of the archive, which the first caller makes.
fn template(binaries: &Path, owner: Option<(u32, u32)>, words: &[&str]) -> io::Result<PathBuf> {
    let target = target_dir()?;
    let mut form = DefaultHasher::new();
    (binaries, owner, words).hash(&mut form);
    let version = binaries.parent().and_then(Path::file_name);
    let version = version.unwrap_or_default().display();
    let name = format!("postgres-template-{version}-{:016x}.tar", form.finish());
    let (template, unfinished) = (target.join(&name), target.join(name + ".new"));
    let lock = File::create(target.join("postgres-template.lock"))?;
    lock.lock()?;
    if !template.exists() {
        // Build elsewhere first: the Postgres user may not enter the target directory.
        let made = tempfile::tempdir()?;
        if let Some((uid, gid)) = owner {
            chown(made.path(), Some(uid), Some(gid))?;
        }
        let data = made.path().join("data");
        let mut initdb = Command::new(binaries.join("initdb"));
        initdb.arg("-D").arg(&data).args(words).arg("--no-sync");
        initdb.current_dir(made.path()).env("LC_ALL", "C");
        if let Some((uid, gid)) = owner {
            initdb.uid(uid).gid(gid);
        }
        run(initdb)?;
        let mut tar = Command::new("tar");
        tar.arg("-cf")
            .arg(&unfinished)
            .arg("-C")
            .arg(&data)
            .arg(".");
        run(tar)?;
        // Rename: never a partial template.
        fs::rename(&unfinished, &template)?;
    }
    Ok(template)
}

/// Returns the directory that cargo has marked as its own, above this program.
fn target_dir() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let mut above = own.ancestors();
    let target = above.find(|dir| dir.join("CACHEDIR.TAG").exists());
    let target = target.or_else(|| own.parent());
    target
        .map(Path::to_owned)
        .ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn run(mut command: Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let program = command.get_program().display();
    Err(io::Error::other(format!("{program}: {stderr}")))
}
