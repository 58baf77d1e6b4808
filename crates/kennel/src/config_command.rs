//! `config`: the settings that `serve` would use.

use crate::{
    args::ConfigCommand,
    config::ServeConfig,
    serve,
    settings::{self, Origin, Setting},
};
use clap::ArgMatches;
use kennel_cli::{Failure, Format, USAGE, print, print_exact};
use kennel_client::Surroundings;
use serde_json::json;

/// Runs `config`. `typed` is the command line after `check` or `show`.
pub(crate) fn config(
    command: ConfigCommand,
    format: &Format,
    typed: &ArgMatches,
    here: &Surroundings,
) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(_) => {
            usable(typed, here)?;
            print("the settings can be used\n")
        }
        ConfigCommand::Show(args) => {
            let settings = usable(typed, here)?;
            if !format.is_text() {
                let documents = settings.iter().map(|setting| {
                    let Setting { key, value, .. } = setting;
                    let origin = setting.origin();
                    format.document(
                        &json!({"key": key, "value": value, "origin": origin}).to_string(),
                    )
                });
                return print_exact(&documents.collect::<String>());
            }
            let line = |setting: &Setting| {
                let origin = if args.origin {
                    format!("  # {}", setting.origin())
                } else {
                    String::new()
                };
                format!("{setting}{origin}\n")
            };
            print(&settings.iter().map(line).collect::<String>())
        }
    }
}

/// Returns all settings, with the defaults that depend on the surroundings, and without a password.
fn usable(typed: &ArgMatches, here: &Surroundings) -> Result<Vec<Setting>, Failure> {
    let read = serve::usable(typed, here);
    let (settings, usable) = read.map_err(|failure| failure.or_code(USAGE))?;
    let mut all = settings.all;
    let has_file = all
        .iter()
        .any(|s| s.key == "store_file" && s.value.is_some());
    let defaults = settings::defaults();
    for setting in &mut all {
        if setting.key == "store" && setting.value.is_some() {
            setting.value = Some(usable.config.store.to_string());
        } else if setting.origin == Origin::Default {
            let of_config = default(&setting.key, &usable.config, has_file);
            setting.value = of_config.or_else(|| defaults.get(&setting.key).cloned());
        }
    }
    Ok(all)
}

/// Returns a default that depends on the surroundings, or that the help leaves out.
fn default(key: &str, config: &ServeConfig, has_store_file: bool) -> Option<String> {
    let text = match key {
        "listen" => {
            let all = config.listen.iter().map(ToString::to_string);
            all.collect::<Vec<_>>().join(",")
        }
        "data_dir" => config.data_dir.display().to_string(),
        "store" if !has_store_file => config.store.to_string(),
        "metrics_public" => "false".to_owned(),
        _ => return None,
    };
    Some(text)
}
