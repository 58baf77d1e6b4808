//! `kennel serve -- COMMAND`: a service for one command and all runs started beside it, such as in a container.
//!
//! The service is a child of this process. When the command has ended, so does the service, and the exit code is the
//! command's.

use crate::{args::ServeArgs, listen, own_service, serve, server::LOST};
use clap::ArgMatches;
use kennel_cli::{ClientArgs, Failure, Format, USAGE, failure::because};
use kennel_client::{Address, Surroundings};
use kennel_keeper::keeper::ListenAddress;
use kennel_linux::census;
use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    process::{Child, ExitCode, Stdio},
};

/// Starts the service, runs the command through it, ends it. `words` is the command line.
pub(crate) fn main(
    client: &ClientArgs,
    flags: &ServeArgs,
    typed: &ArgMatches,
    (here, words): (&Surroundings, &[OsString]),
) -> ExitCode {
    let started = serve::usable_by(client, typed, here)
        .and_then(|(_, usable)| address(&usable.config.listen))
        .and_then(|address| Ok((start(words)?, address)));
    let (mut keeper, address) = match started {
        Ok(started) => started,
        Err(failure) => return failure.report(),
    };
    let work = work(&mut keeper, &address, flags, here);
    kennel_cli::carry_out(true, &Format::default(), Box::pin(work))
}

async fn work(
    keeper: &mut Child,
    address: &Address,
    flags: &ServeArgs,
    here: &Surroundings,
) -> Result<u8, Failure> {
    let Some(connection) = own_service::answer(address, keeper).await? else {
        // The keeper has given the reason on the standard error that it shares with this process.
        let status = keeper.wait().ok().and_then(|status| status.code());
        return Ok(status
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(LOST));
    };
    let done = Box::pin(kennel_cli::run_command(connection, &flags.command, here)).await;
    own_service::end(keeper).await;
    done
}

/// Returns the address of the service's unix socket.
fn address(listen: &[ListenAddress]) -> Result<Address, Failure> {
    let path = listen::socket(listen).ok_or_else(|| {
        Failure::new("a service with a command needs a unix socket")
            .code(USAGE)
            .hint("add --listen unix:PATH")
    })?;
    Ok(Address::Unix(path.clone()))
}

fn start(words: &[OsString]) -> Result<Child, Failure> {
    let own = words.iter().take_while(|word| *word != "--").skip(1);
    let mut command = own_service::own_program()?;
    command
        .args(own)
        .stdin(Stdio::null())
        // Ctrl-C is for the command; the service ends after it.
        .process_group(0);
    census::end_with_this_thread(&mut command);
    command.spawn().map_err(because("cannot start the service"))
}
