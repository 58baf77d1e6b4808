use super::*;
use crate::top::{
    draw,
    sample::{Counted, RunUsage, usage},
};
use ratatui::{Terminal, backend::TestBackend, crossterm::event::KeyModifiers};
use tokio::time::Instant;

fn seen(id: u8, command: &str, usage: RunUsage) -> SampledRun {
    let run = pb::Run {
        run_id: format!("01JD{id:022}"),
        state: pb::RunState::Running.into(),
        spec: Some(pb::RunSpec {
            command: Some(pb::run_spec::Command::Argv(pb::Argv {
                args: vec![command.to_owned()],
                ..pb::Argv::default()
            })),
            ..pb::RunSpec::default()
        }),
        ..pb::Run::default()
    };
    SampledRun { run, usage }
}

fn board_of(runs: Vec<SampledRun>) -> Board {
    let mut board = Board::new("unix:/s".into(), false);
    board.update(BoardInput::Sample(Box::new(Sample {
        info: pb::ServerInfo::default(),
        runs,
        cut: false,
        unreadable: 0,
        at: SystemTime::UNIX_EPOCH,
    })));
    board
}

fn press(board: &mut Board, code: KeyCode) -> Option<Action> {
    board.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn drawn(board: &mut Board, (cols, rows): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(cols, rows)).expect("a terminal");
    terminal
        .draw(|frame| draw::board(frame, board))
        .expect("it is drawn");
    terminal.backend().to_string()
}

// promise: RW-126
#[test]
fn unreadable_runs_are_counted_in_the_heading() {
    let mut board = board_of(vec![seen(1, "a", RunUsage::default())]);
    let words = "cannot be read here";
    assert!(!drawn(&mut board, (80, 24)).contains(words));
    board.unreadable = 3;
    assert!(drawn(&mut board, (80, 24)).contains(&format!("live runs, 3 {words}, by age")));
}

// promise: C-23a
#[test]
fn abort_and_pause_need_confirmation() {
    let mut board = board_of(vec![seen(1, "a", RunUsage::default())]);
    for key in ['x', 'p'] {
        assert_eq!(press(&mut board, KeyCode::Char(key)), None);
        assert_eq!(press(&mut board, KeyCode::Char('n')), None);
        assert_eq!(press(&mut board, KeyCode::Char('y')), None);
    }
    assert_eq!(press(&mut board, KeyCode::Char('x')), None);
    let ended = press(&mut board, KeyCode::Char('y'));
    assert_eq!(
        ended,
        Some(Action::Abort("01JD0000000000000000000001".into()))
    );
}

// promise: C-23
#[test]
fn unknown_usage_is_a_dash_and_sorts_last() {
    let used = |cpu| RunUsage {
        cpu_percent: Some(cpu),
        ..RunUsage::default()
    };
    let runs = vec![
        seen(3, "unknown", RunUsage::default()),
        seen(2, "little", used(1.0)),
        seen(1, "much", used(50.0)),
    ];
    let mut board = board_of(runs);
    board.sort = Sort::Cpu;
    let order: Vec<String> = board
        .shown()
        .iter()
        .map(|s| command::or_dash(&s.run))
        .collect();
    assert_eq!(order, ["much", "little", "unknown"]);
    let shown = drawn(&mut board, (80, 24));
    let unknown = shown
        .lines()
        .find(|line| line.contains("unknown"))
        .expect("it is there");
    assert_eq!(unknown.matches(" - ").count(), 5, "{unknown}");
}

// promise: C-23
#[test]
fn board_fits_any_size_and_escapes_names() {
    let evil = "\x1b[2Jevil\n";
    let runs = (1..40)
        .map(|id| seen(id, evil, RunUsage::default()))
        .collect();
    let mut board = board_of(runs);
    for size in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
        for key in ['?', '/', 'x'] {
            press(&mut board, KeyCode::Char(key));
            let shown = drawn(&mut board, size);
            assert!(!shown.contains('\x1b'), "{shown}");
            press(&mut board, KeyCode::Esc);
        }
    }
    press(&mut board, KeyCode::End);
    let shown = drawn(&mut board, (80, 24));
    assert!(shown.contains("~0000000001 "), "{shown}");
}

#[test]
fn filter_matches_id_command_label_and_state() {
    let mut board = board_of(vec![
        seen(1, "sleep", RunUsage::default()),
        seen(2, "make", RunUsage::default()),
    ]);
    press(&mut board, KeyCode::Char('/'));
    for c in "MAKE".chars() {
        press(&mut board, KeyCode::Char(c));
    }
    assert_eq!(board.shown().len(), 1);
    press(&mut board, KeyCode::Enter);
    assert_eq!(board.shown().len(), 1);
    press(&mut board, KeyCode::Esc);
    assert_eq!(board.shown().len(), 2);
}

// promise: C-23
#[test]
fn usage_rates_are_computed_between_two_samples() {
    let at = Instant::now();
    let before = Counted {
        at,
        cpu: [
            ((1, 1), Duration::from_secs(10)),
            ((2, 2), Duration::from_secs(9)),
        ]
        .into(),
        group_cpu: None,
        processes: 2,
        memory_bytes: 5,
        output_bytes: 100,
    };
    let now = Counted {
        at: at + Duration::from_secs(2),
        // The second process has exited, and another one has its pid.
        cpu: [
            ((1, 1), Duration::from_secs(11)),
            ((2, 7), Duration::from_secs(1)),
        ]
        .into(),
        output_bytes: 300,
        ..before.clone()
    };
    let first = usage(None, &before);
    assert_eq!((first.cpu_percent, first.output_rate), (None, None));
    let used = usage(Some(&before), &now);
    assert_eq!(used.cpu_percent, Some(100.0));
    assert_eq!(used.output_rate, Some(100.0));

    // The kernel counts for the whole group, including exited processes; another attempt begins at zero.
    let counted = |attempt, secs, of: &Counted| Counted {
        group_cpu: Some((attempt, Duration::from_secs(secs))),
        ..of.clone()
    };
    let used = usage(Some(&counted(1, 20, &before)), &counted(1, 26, &now));
    assert_eq!(used.cpu_percent, Some(300.0));
    let used = usage(Some(&counted(1, 20, &before)), &counted(2, 1, &now));
    assert_eq!(used.cpu_percent, Some(100.0));
}

fn click(board: &mut Board, row: u16) -> Option<Action> {
    board.mouse(MouseEvent {
        kind: MouseEventKind::Down(MouseButton::Left),
        column: 1,
        row,
        modifiers: KeyModifiers::NONE,
    })
}

// promise: C-54
#[test]
fn click_selects_and_second_click_opens_run() {
    let runs = (1..=20).map(|id| seen(id, "a", RunUsage::default()));
    let mut board = board_of(runs.collect());
    drawn(&mut board, (80, 10));
    assert_eq!(click(&mut board, 0), None, "the heading is no run");
    assert_eq!(click(&mut board, 6), None);
    let before = drawn(&mut board, (80, 10));
    let Some(Action::Tree(run)) = click(&mut board, 6) else {
        panic!("not opened: {before}");
    };
    assert!(before.contains(&run[16..]), "{before}");
    // The shown part stays when another of its runs is selected, and also on a smaller terminal.
    press(&mut board, KeyCode::End);
    let last = drawn(&mut board, (80, 10));
    click(&mut board, 5);
    assert_eq!(drawn(&mut board, (80, 10)), last);
    for rows in [6, 3, 1, 40] {
        drawn(&mut board, (20, rows));
    }
    press(&mut board, KeyCode::Char('x'));
    let place = board.place.clone();
    assert_eq!(click(&mut board, 5), None, "a click is no yes");
    assert_eq!(board.place, place);
}
