//! The keys and their actions.

/// Each key, and its action, as in help.
pub(super) const HELP: [(&str, &str); 16] = [
    ("up down k j", "go to another run, or through a page"),
    ("PgUp PgDn Home End", "the same, further"),
    ("wheel", "the same"),
    ("click", "point at a run; once more: show its processes"),
    ("Enter t", "show the processes of the run"),
    ("l", "show the last lines of its output"),
    ("x", "end the run, after you have said yes"),
    ("p", "pause or resume the run, after you have said yes"),
    ("s S", "sort by the next, or by the former column"),
    ("r", "the other way round"),
    ("a", "show ended runs too, or live ones alone"),
    (
        "/",
        "show only runs that have this text in id, command, label or state",
    ),
    ("space", "look at once"),
    ("Esc", "back; leave the filter"),
    ("? h", "this page"),
    ("q Ctrl-C", "leave; the runs continue"),
];
