//! Sections of an access file.

use super::files::{Directory, Made};
use crate::certs::RoleArgs;
use clap::ValueEnum as _;
use std::path::Path;
use toml::Value;

/// Returns the section of a server's certificate.
pub(super) fn tls(made: &Made, dir: &Directory) -> String {
    format!(
        "[tls]\n{}client_ca = {}\ncrl = {}\n\n",
        pair(made),
        quoted_path(&dir.path(super::files::CA)),
        quoted_path(&dir.path(super::files::CRL)),
    )
}

/// Returns the section with which a server calls other nodes.
pub(super) fn forward(made: &Made, dir: &Directory) -> String {
    let ca = quoted_path(&dir.path(super::files::CA));
    format!("[forward]\n{}ca = {ca}\n\n", pair(made))
}

fn pair(made: &Made) -> String {
    let [certificate, key] = [made.files.first(), made.files.get(1)]
        .map(|file| quoted_path(file.map_or(Path::new(""), |f| f)));
    format!("certificate = {certificate}\nkey = {key}\n")
}

/// Returns the section with the rights of a principal.
pub(super) fn principal(name: &str, args: &RoleArgs) -> String {
    let owner = args
        .owner
        .as_deref()
        .map(|owner| format!("owner = {}\n", quoted(owner)));
    let role = args.role.to_possible_value();
    format!(
        "[[principal]]\nname = {}\nrole = \"{}\"\n{}\n",
        quoted(name),
        role.as_ref().map_or("", |role| role.get_name()),
        owner.unwrap_or_default()
    )
}

/// Returns the section of a token that is accepted until then.
pub(super) fn token(id: &str, sha256: &str, expires: &str) -> String {
    format!(
        "[[token]]\nid = {}\nsha256 = \"{sha256}\"\nexpires = \"{expires}\"\n\n",
        quoted(id)
    )
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_entries_are_valid_toml_for_any_text() {
        let args = RoleArgs {
            owner: Some("a \"team\"\n".to_owned()),
            ..RoleArgs::default()
        };
        let text =
            principal("spiffe://kennel/a", &args) + &token("ci", "00", "2030-01-01T00:00:00Z");
        let file: toml::Table = toml::from_str(&text).expect("TOML");
        assert_eq!(file["principal"][0]["owner"].as_str(), Some("a \"team\"\n"));
        assert_eq!(file["principal"][0]["role"].as_str(), Some("spawner"));
        assert_eq!(file["token"][0]["id"].as_str(), Some("ci"));
    }
}
