//! Clients at a terminal: the screen, the writer, and that nothing of it is lost with a connection or a server.

use kennel_client as client;
use kennel_client::Attachment;
use kennel_proto::pb::{self, attach_response::Response as Reported, event::Payload};
use kennel_tests::{
    Client, Footprint, Kennel, Options, PATIENCE, RunExt, SpecExt, cases, complaint,
    eventually_async, fact, must, programs, sh, within,
};
use nix::sys::signal::Signal;
use tonic::Code;

cases! {
    fn clients_attach_to_terminals(Kennel::start(of_own_binary()).await);
    attached_client_does_not_notice_an_upgrade,
    oversize_terminal_is_not_drawn_and_continues,
    one_of_several_attached_clients_writes_at_once,
    faults_of_an_attachment_are_reported,
    screen_is_read_during_and_after_a_run,
    attachment_continues_at_next_server_without_repeats,
}

/// The server can be upgraded.
fn of_own_binary() -> Options {
    Options {
        own_binary: Some(programs::kennel()),
        ..Options::default()
    }
}

// promise: P-10, P-10b
async fn screen_is_read_during_and_after_a_run(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = r"printf 'one\r\n\033[1;32mtwo\033[0m\033]2;a title\007'; read x; printf '\033[?1049h\033[Hin an editor'; read x; printf '\033[?1049l'; exit 3";
    let run = must("spawn", client.spawn(on_terminal(script, (5, 30))).await);
    let screen = shows(kennel, &run.run_id, "two").await;
    assert_eq!(lines(&screen), ["one", "two", "", "", ""]);
    assert_eq!((screen.cursor_row, screen.cursor_col), (1, 3));
    assert_eq!(
        (
            screen.title.as_str(),
            screen.alternate,
            screen.whole_from_seq
        ),
        ("a title", false, 1)
    );
    let style = screen.lines[1].spans[0].style.expect("it is green");
    let green = pb::screen_color::Color::Indexed(2);
    assert_eq!(
        (style.bold, style.foreground.and_then(|color| color.color)),
        (true, Some(green))
    );

    must("write", client.type_in(&run.run_id, "x\n").await);
    let screen = shows(kennel, &run.run_id, "in an editor").await;
    assert!(screen.alternate);
    // The next server rebuilds the screen from output.
    kennel.kill_server();
    let again = shows(kennel, &run.run_id, "in an editor").await;
    assert_eq!(
        (&again.lines, again.alternate, &again.repaint),
        (&screen.lines, true, &screen.repaint)
    );
    // After a resize, the run leaves the alternate screen at its end.
    let mut client = kennel.client().await;
    must("resize", client.resize(&run.run_id, 6, 20).await);
    must("write", client.type_in(&run.run_id, "x\n").await);
    let ended = must("wait", client.ended(&run.run_id).await);
    assert_eq!(ended.code(), Some(3));
    let last = must("screen", client.screen(&run.run_id).await);
    assert_eq!(last.size, Some(pb::TerminalSize { rows: 6, cols: 20 }));
    assert_eq!(lines(&last)[..2], ["one", "twox"]);
    assert!(!last.alternate);
    Footprint::of_run(&ended).assert_nothing_left();

    let piped = must("spawn", client.spawn(sh("sleep 1000")).await);
    let refused = client
        .screen(&piped.run_id)
        .await
        .expect_err("it has no terminal");
    assert_eq!(
        (refused.code(), complaint(&refused).reason.as_str()),
        (Code::FailedPrecondition, "NO_TERMINAL")
    );
    must("abort", client.abort(&piped.run_id).await);
}

// promise: P-10b
async fn oversize_terminal_is_not_drawn_and_continues(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client
            .spawn(on_terminal("echo up; read x", (65_535, 65_535)))
            .await,
    );
    client.hear_text(&run.run_id, "up\r\n").await;
    let refused = client
        .screen(&run.run_id)
        .await
        .expect_err("it is too large");
    assert_eq!(complaint(&refused).reason, "SCREEN_TOO_LARGE");
    assert_eq!(fact(&refused, "rows"), "65535");
    must("resize", client.resize(&run.run_id, 24, 80).await);
    let screen = shows(kennel, &run.run_id, "up").await;
    assert_eq!(screen.size, Some(pb::TerminalSize { rows: 24, cols: 80 }));
    must("abort", client.abort(&run.run_id).await);
}

// promise: P-12
async fn one_of_several_attached_clients_writes_at_once(kennel: &Kennel) {
    let (mut client, run) = cat_on_a_terminal(kennel).await;

    let mut first = at(kennel, &run.run_id, false, Some((7, 40))).await;
    let opened = first.opened().await;
    assert_eq!(opened.writer, Some(writer(true, "uid:0")));
    let mut second = at(kennel, &run.run_id, false, Some((9, 50))).await;
    let opened = second.opened().await;
    assert_eq!(opened.writer, Some(writer(false, "uid:0")));
    let size = opened.screen.as_ref().and_then(|screen| screen.size);
    assert_eq!(
        size,
        Some(pb::TerminalSize { rows: 7, cols: 40 }),
        "it is as large as its writer wants"
    );
    assert!(lines(&opened.screen.expect("a screen"))[0].starts_with("up"));
    let mut watcher = at(kennel, &run.run_id, true, None).await;
    watcher.opened().await;

    first.attachment.type_in("by the first\n", "a".to_owned());
    for reader in [&mut first, &mut second, &mut watcher] {
        reader.reads("by the first\r\n").await;
    }
    second.attachment.type_in("by the second\n", "b".to_owned());
    assert_eq!(
        second.refused().await,
        ("NOT_WRITER".to_owned(), "b".to_owned())
    );
    watcher.attachment.take();
    assert_eq!(watcher.refused().await.0, "NOT_WRITER");

    second.attachment.take();
    assert_eq!(first.writer().await, writer(false, "uid:0"));
    assert_eq!(second.writer().await, writer(true, "uid:0"));
    first.attachment.type_in("too late\n", "c".to_owned());
    assert_eq!(
        first.refused().await,
        ("NOT_WRITER".to_owned(), "c".to_owned())
    );
    // After a client leaves, the next one may type.
    second.attachment.leave();
    assert!(second.ends().await);
    assert_eq!(first.writer().await, writer(false, ""));
    first.attachment.type_in("again\n", "d".to_owned());
    watcher.reads("again\r\n").await;
    assert_eq!(first.writer().await, writer(true, "uid:0"));

    must("abort", client.abort(&run.run_id).await);
    assert!(
        first.ends().await && watcher.ends().await,
        "the stream ends with its run"
    );
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert!(
        !heard.text().contains("second") && !heard.text().contains("late"),
        "{}",
        heard.text()
    );
}

// promise: P-13
async fn attachment_continues_at_next_server_without_repeats(kennel: &Kennel) {
    let (_, run) = cat_on_a_terminal(kennel).await;
    let mut there = at(kennel, &run.run_id, false, None).await;
    there.opened().await;
    let mut wanted = String::new();
    for round in 0..2 {
        for word in 0..6 {
            let word = format!("{round} {word}\n");
            there
                .attachment
                .type_in(word.clone(), format!("{round}-{}", word.trim_end()));
            wanted += &word.replace('\n', "\r\n");
        }
        // Some input may be accepted, and part of that acknowledged.
        kennel.kill_server();
        there.reads(&wanted).await;
        // Wait until it serves: early deaths lengthen the restart delay.
        must("get", kennel.client().await.get(&run.run_id).await);
    }
    assert_eq!(there.read, wanted);
    let mut client = kennel.client().await;
    let ended = must("abort", client.abort(&run.run_id).await);
    assert!(there.ends().await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), format!("up\r\n{wanted}"));
    Footprint::of_run(&ended).assert_nothing_left();
}

/// Before any case in which a server dies: the log has no warning.
// promise: P-13
async fn attached_client_does_not_notice_an_upgrade(kennel: &Kennel) {
    let (mut client, run) = cat_on_a_terminal(kennel).await;
    let mut there = at(kennel, &run.run_id, false, None).await;
    there.opened().await;
    let mut wanted = String::new();
    for round in 0..2 {
        let before = client.server_info().await.expect("it serves").generation;
        kennel.install(&programs::kennel());
        kennel.signal(Signal::SIGHUP);
        for word in 0..20 {
            let word = format!("{round} {word}\n");
            there
                .attachment
                .type_in(word.clone(), format!("{round}-{}", word.trim_end()));
            wanted += &word.replace('\n', "\r\n");
        }
        there.reads(&wanted).await;
        client = eventually_async("the next server serves", PATIENCE, async || {
            let mut client = kennel.client().await;
            let info = client.server_info().await?;
            (info.generation > before).then_some(client)
        })
        .await;
    }
    assert_eq!(there.read, wanted);
    let size = client.resize(&run.run_id, 7, 40).await;
    must("resize", size);
    let screen = must("screen", client.screen(&run.run_id).await);
    let size = pb::TerminalSize { rows: 7, cols: 40 };
    assert_eq!(screen.size, Some(size));
    let again = must("get", client.get(&run.run_id).await);
    assert_eq!(again.lasting(), run.lasting());
    assert!(!kennel.log().contains("WARN"), "{}", kennel.log());
    let ended = must("abort", client.abort(&run.run_id).await);
    assert!(there.ends().await);
    let heard = must("stream", client.hear_all(&run.run_id, 0).await);
    assert_eq!(heard.text(), format!("up\r\n{wanted}"));
    Footprint::of_run(&ended).assert_nothing_left();
}

async fn faults_of_an_attachment_are_reported(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let piped = must("spawn", client.spawn(sh("exit 0")).await);
    must("wait", client.ended(&piped.run_id).await);
    let unknown = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    for (run, reason) in [
        (&*piped.run_id, "NO_TERMINAL"),
        (unknown, "RUN_NOT_FOUND"),
        ("x y", "INVALID_RUN_ID"),
    ] {
        let mut there = at(kennel, run, false, None).await;
        let refused = there.attachment.next().await.expect_err("refused");
        assert_eq!(refused.reason.as_deref(), Some(reason), "{refused:?}");
    }
    let size = Some((0, 80));
    let mut there = at(kennel, &piped.run_id, false, size).await;
    let refused = there.attachment.next().await.expect_err("refused");
    assert_eq!(refused.reason.as_deref(), Some("INVALID_FIELD"));

    // Attaching to an ended run shows its last screen.
    let run = must(
        "spawn",
        client.spawn(on_terminal("echo bye", (5, 30))).await,
    );
    must("wait", client.ended(&run.run_id).await);
    let mut there = at(kennel, &run.run_id, false, Some((5, 30))).await;
    let opened = there.opened().await;
    assert_eq!(lines(&opened.screen.expect("a screen"))[0], "bye");
    assert!(there.ends().await);
}

/// A command that prints each typed line, once.
async fn cat_on_a_terminal(kennel: &Kennel) -> (Client, pb::Run) {
    let mut client = kennel.client().await;
    let cat = on_terminal("stty -echo; echo up; exec cat", (5, 30));
    let run = must("spawn", client.spawn(cat).await);
    client.hear_text(&run.run_id, "up\r\n").await;
    (client, run)
}

/// A client at a terminal, with the messages that it got.
struct There {
    attachment: Attachment,
    read: String,
}

impl There {
    async fn next(&mut self) -> Option<Reported> {
        let reported = within("a message comes", PATIENCE, self.attachment.next()).await;
        let reported = reported.unwrap_or_else(|failure| panic!("{failure:?}"));
        if let Some(Reported::Events(events)) = &reported {
            for event in events.run_events.iter().flat_map(|batch| &batch.events) {
                if let Some(Payload::Output(output)) = &event.payload {
                    self.read += &String::from_utf8_lossy(&output.data);
                }
            }
        }
        reported
    }

    async fn opened(&mut self) -> pb::AttachOpened {
        match self.next().await {
            Some(Reported::Opened(opened)) => *opened,
            reported => panic!("not opened but {reported:?}"),
        }
    }

    async fn reads(&mut self, text: &str) {
        while !self.read.ends_with(text) {
            assert!(
                self.next().await.is_some(),
                "it has ended after {:?}",
                self.read
            );
        }
    }

    async fn refused(&mut self) -> (String, String) {
        loop {
            if let Reported::Refused(refused) = self.next().await.expect("it continues") {
                return (refused.reason, refused.write_id);
            }
        }
    }

    async fn writer(&mut self) -> pb::WriterChanged {
        loop {
            if let Reported::Writer(writer) = self.next().await.expect("it continues") {
                return writer;
            }
        }
    }

    async fn ends(&mut self) -> bool {
        while self.next().await.is_some() {}
        true
    }
}

async fn at(kennel: &Kennel, run: &str, read_only: bool, size: Option<(u32, u32)>) -> There {
    let address = kennel.address().parse().expect("an address");
    let connection = client::connect(&address).await.expect("it serves");
    let open = pb::AttachOpen {
        run_id: run.to_owned(),
        read_only,
        size: size.map(|(rows, cols)| pb::TerminalSize { rows, cols }),
        cursor: Vec::new().into(),
    };
    There {
        attachment: Attachment::new(&connection, open),
        read: String::new(),
    }
}

fn writer(you: bool, principal: &str) -> pb::WriterChanged {
    pb::WriterChanged {
        you,
        principal: principal.to_owned(),
    }
}

fn on_terminal(script: &str, (rows, cols): (u32, u32)) -> pb::RunSpec {
    sh(script).on_terminal(pb::Terminal {
        rows: Some(rows),
        cols: Some(cols),
        term: String::new(),
    })
}

fn lines(screen: &pb::Screen) -> Vec<String> {
    let text = |line: &pb::ScreenLine| line.spans.iter().map(|span| &*span.text).collect();
    screen.lines.iter().map(text).collect()
}

async fn shows(kennel: &Kennel, run: &str, text: &str) -> pb::Screen {
    eventually_async(&format!("{text:?} is shown"), PATIENCE, async || {
        let mut client = kennel.client().await;
        let screen = client.screen(run).await.ok()?;
        lines(&screen)
            .iter()
            .any(|line| line.contains(text))
            .then_some(screen)
    })
    .await
}
