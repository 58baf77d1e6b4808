//! Texts after the help of a command: exit codes, and details that the flags do not give.

pub(super) const COMPLETIONS_HELP: &str = "\
The shell asks kennel itself, so ids of runs and labels are completed too.

bash:        kennel completions bash > ~/.local/share/bash-completion/completions/kennel
zsh:         kennel completions zsh > DIR/_kennel, where DIR is one of $fpath
fish:        kennel completions fish > ~/.config/fish/completions/kennel.fish
powershell:  kennel completions powershell | Out-String | Invoke-Expression
elvish:      eval (kennel completions elvish | slurp)";

pub(super) const ATTACH_HELP: &str = "\
One attached client types at a time: the first, or the one that took the keyboard with --take. Keys typed elsewhere ring
the bell. The run's terminal has the size of the client that types.

Exit codes: the command's own if the run has ended, as for `run`; 0 after detaching.";

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
These commands have more, see their --help: run, wait, drain, upgrade, doctor, reap, serve.";

pub(super) const RUN_CODES: &str = "\
Exit codes:
  0-255    the command's own
  128+N    signal N ended the command, and this process ends itself by it; 137 also if the kernel
           killed the command for lack of memory
  141      standard output has no reader any more; the run was stopped
  153      output exceeded its limit (--output-full, --disk-full); the run was stopped
  124      the run exceeded --timeout or --inactivity and was stopped
  125      kennel itself failed: no server, refused, stream lost, exit unknown; or standard output
           cannot be written, and the run was stopped
  126      the command was found and could not be executed
  127      the command was not found

Signals, as for a child of the shell:
  Ctrl-C   interrupts the command (SIGINT to its group); a second one ends the whole tree by its
           stop policy (SIGTERM, the grace, SIGKILL), a third one at once
  Ctrl-\\   ends the whole tree, as do SIGTERM, and SIGHUP when the terminal is closed; a second one
           skips the grace
  Ctrl-Z   pauses the run and stops this command; `fg` and `bg` resume it
Signals ignored here (nohup) are not forwarded. With --tty keys go to the command.

Standard input is passed to the command; a terminal is read while this command is in its foreground.
The command reads /dev/null with --no-stdin, with --restart, and if ours is /dev/null. With --tty in a pipeline, its
input is typed on the terminal with the end-of-file key behind it, and output is passed on byte for byte.

The command inherits this environment except KENNEL_*, unless --env-mode says otherwise.

With --output json the run's events are printed, including its output, as by `kennel events`.";

pub(super) const WRITE_HELP: &str = "\
Each byte is written once, even if the server dies meanwhile. To continue an interrupted write, repeat it with --offset:
`kennel write RUN FILE --offset 0` skips the bytes that the run already has, all of them where it has the whole file; with
--close it closes the input only at the end of the file. A full pipe blocks the write.
Prints the number of accepted bytes; the command may not have read them yet.";

pub(super) const WAIT_CODES: &str = "\
Exit codes of --for ended, the default:
  0-255    the command's own, 128+N, 124 or 153, as for `run`; with several runs that of the
           first that is not 0
  124      also: --timeout is over
  125      the server refused, could not do it, or is not there; or the exit is unknown
  2        the command line was not understood

Exit codes of any other condition:
  0        the condition holds
  1        the server refused, could not do it, or is not there
  2        the command line was not understood
  3        the condition can no longer occur";

pub(super) const ABORT_CODES: &str = "\
Exit codes:
  0    the run has ended, or has reached the state of --wait
  1    the server refused, or is not there
  2    the command line was not understood
  3    the stop is queued for the run's node, which cannot be reached";

pub(super) const DRAIN_CODES: &str = "\
Exit codes:
  0    draining; with --wait: and no run is left
  1    the server refused, is not there, or the drain was undone while --wait waited
  2    the command line was not understood";

pub(super) const UPGRADE_CODES: &str = "\
Exit codes:
  0    the installed binary serves
  1    the binary is unusable, and the server is untouched; or the new server did not start, and the former binary serves
       again; or no server is there
  2    the command line was not understood

The installed binary is the file that `kennel serve` was started from. The keeper is not replaced.";

pub(super) const DOCTOR_CODES: &str = "\
Exit codes:
  0    everything was checked, and nothing was left behind
  1    no server answers, or it could not check; only markers are searched for, which are hints
  2    the command line was not understood
  3    processes were left behind, or the service itself is damaged
  4    nothing is proven to be left behind, but there are hints, or something could not be checked

Sends no signal and changes nothing.

Exit codes of --prove:
  0      every verdict was true: nothing was left, or the verdict named it
  1      a verdict was false, or the proof could not be made
  130    interrupted";

pub(super) const REAP_CODES: &str = "\
Exit codes:
  0    all selected processes ended, or would be ended; also if nothing was found
  1    the server refused, could not do it, or is not there
  2    the command line was not understood
  3    a selected process is left: it was skipped, or survived

Without --yes no signal is sent: processes that would be ended or skipped are listed with the reason.
Only processes proven to belong to an ended run are ended; each is verified again before its signal.";

pub(super) const WAIT_OUTPUT_CODES: &str = "\
Exit codes:
  0        a line matched
  1        the server refused, could not do it, or is not there
  2        the command line was not understood
  3        the run has ended, and no line matched
  124      --timeout is over";
