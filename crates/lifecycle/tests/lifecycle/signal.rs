//! Signals have a number and a name, and either finds the other.

use kennel_lifecycle::Signal;

#[test]
fn signal_names_and_numbers_round_trip() {
    // 32 and 33 belong to the C library and have no name.
    for number in (1..=64).filter(|n| ![32, 33].contains(n)) {
        let signal = Signal::from_number(number).unwrap();
        assert_eq!(signal.number(), number);
        assert_eq!(signal.to_string().parse::<Signal>(), Ok(signal));
    }
    assert_eq!(Signal::TERM.to_string(), "SIGTERM");
    assert_eq!(Signal::from_number(34).unwrap().to_string(), "SIGRTMIN");
    assert_eq!(Signal::from_number(64).unwrap().to_string(), "SIGRTMIN+30");
}

#[test]
fn signal_aliases_of_kill_are_parsed() {
    let numbers = [
        ("SIGIOT", 6),
        ("SIGCLD", 17),
        ("SIGPOLL", 29),
        ("SIGRTMAX", 64),
        ("SIGRTMAX-14", 50),
        ("SIGRTMAX-30", 34),
    ];
    for (name, number) in numbers {
        let signal = name.parse::<Signal>().map(Signal::number);
        assert_eq!(signal, Ok(number), "{name}");
    }
}

#[test]
fn invalid_signal_is_refused() {
    for number in [i32::MIN, -1, 0, 65, i32::MAX] {
        assert_eq!(Signal::from_number(number), None);
    }
    let names = [
        "",
        "SIG",
        "SIGFOO",
        "TERM",
        "sigterm",
        "15",
        "SIGRTMIN+31",
        "SIGRTMIN+",
        "SIGRTMIN+-5",
        "SIGRTMIN++1",
        "SIGRTMIN+2147483647",
        "SIGRTMIN-1",
        "SIGRTMAX-31",
        "SIGRTMAX+1",
        "SIGRTMAX-",
    ];
    for name in names {
        assert_eq!(name.parse::<Signal>(), Err(()), "{name:?}");
    }
}
