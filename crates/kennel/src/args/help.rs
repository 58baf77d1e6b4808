//! Texts that stand behind the help of a command: exit codes and what the flags do not say.

pub(super) const COMPLETIONS_HELP: &str = "\
The shell asks kennel itself, so ids of runs and labels are completed too.

bash:        kennel completions bash > ~/.local/share/bash-completion/completions/kennel
zsh:         kennel completions zsh > DIR/_kennel, where DIR is one of $fpath
fish:        kennel completions fish > ~/.config/fish/completions/kennel.fish
powershell:  kennel completions powershell | Out-String | Invoke-Expression
elvish:      eval (kennel completions elvish | slurp)";

pub(super) const ATTACH_HELP: &str = "\
One of those who are attached writes at a time: who came first, or who has taken it with --take. Where another does, what
is typed here is answered with a bell. The terminal of the run gets the size of the writer's.

Exit codes: the command's own where the run has ended, as of `run`; 0 where it was left.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
Others are told by the commands that have them: run, wait, drain, upgrade, doctor, reap, serve.";

pub(super) const RUN_CODES: &str = "\
Exit codes:
  0-255    the command's own
  128+N    signal N ended the command; 137 also where the kernel killed it for want of memory
  141      no process reads standard output any more, and the run is ended
  153      it had more output than there is room for and was ended (--output-full, --disk-full)
  124      it took longer than --timeout, or was inactive for longer than --inactivity, and was ended
  125      kennel itself failed: no server, refused, stream lost, exit unknown; or standard output
           cannot be written, and the run is ended
  126      the command was found and could not be executed
  127      the command was not found

Signals, as of a child in the shell:
  Ctrl-C   interrupts the command (SIGINT to its group); a second one ends the whole tree by its
           stop policy (SIGTERM, the grace, SIGKILL), a third one at once
  Ctrl-\\   ends the whole tree, as do SIGTERM, and SIGHUP when the terminal is closed; a second one
           skips the grace
  Ctrl-Z   pauses the run and stops this command; `fg` and `bg` resume it
What is ignored here (nohup) is not forwarded. With --tty the command is given the keys themselves.

Standard input goes to the command as it comes; a terminal is read while this command is in its
foreground. The command's is /dev/null with --no-stdin, with --restart, and where ours is.

The command has the environment of this command line but KENNEL_*; --env-mode says otherwise.

With --output json the run's events are printed, as by `kennel events`, and its output is in them.";

pub(super) const WRITE_HELP: &str = "\
Each byte is written once, also where the server dies meanwhile. A write that was cut off is gone on with by the same
command with --offset: `kennel write RUN FILE --offset 0` skips what the run has of the file. A full pipe makes it wait.
Prints how many bytes were accepted in all; that the command has read them is not said.";

pub(super) const WAIT_CODES: &str = "\
Exit codes of --for ended, the default:
  0-255    the command's own, 128+N, 124 or 153, as of `run`
  125      the server refused, could not do it, or is not there; or how the run ended is not known
  2        the command line was not understood

Exit codes of any other condition:
  0        the condition holds
  1        the server refused, could not do it, or is not there
  2        the command line was not understood
  3        the condition can no longer occur";

pub(super) const DRAIN_CODES: &str = "\
Exit codes:
  0    it is so; with --wait: and no run is left
  1    the server refused, is not there, or the drain was undone while --wait waited
  2    the command line was not understood";

pub(super) const UPGRADE_CODES: &str = "\
Exit codes:
  0    a server of the installed binary serves
  1    the binary will not do, and the server is untouched; or the new server did not come to serve, and one of the
       former binary does; or no server is there
  2    the command line was not understood

Installed is what is at the path that `kennel serve` was started from. The keeper is not replaced.";

pub(super) const SERVE_CODES: &str = "\
Exit codes:
  0     every run has ended and all is recorded
  1     something was still alive 10 seconds after the order to stop, or the start failed
  2     the data directory is in use by another server, or the command line was not understood
  70    a part of the service was lost

SIGTERM or SIGINT stops every run and then the server; a second one skips the graces. SIGHUP does what `kennel upgrade`
does, and logs what comes of it.

Flags win over variables. A store's URL that holds a password belongs into --store-file.";

pub(super) const DOCTOR_CODES: &str = "\
Exit codes:
  0    everything was looked at, and nothing was left behind
  1    no server answers, or it could not look; then only markers are looked for, and they are hints
  2    the command line was not understood
  3    something was left behind, or the service itself is not as it should be
  4    nothing is proven to be left behind, but there are hints, or something could not be looked at

Signals nobody and changes nothing.

Exit codes of --prove:
  0      every verdict was true: nothing was left, or it was said
  1      a verdict was not true, or the proof could not be made
  130    interrupted";

pub(super) const REAP_CODES: &str = "\
Exit codes:
  0    all that was asked for has ended, or would be ended; also where nothing was found
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
  3    something that was asked for is left: it was left alone, or has survived

Without --yes nobody is signalled: what would be ended is listed, and what would be left alone, and why.
Only what is proved to be of a run that is over is ended. Each signal is preceded by another look.";
