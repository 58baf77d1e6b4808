//! Waits for the first line that matches, by the recorded output alone.

use kennel_proto::pb::{self, line_pattern::Pattern, wait_for_output_response::Result as Found};
use kennel_tests::{
    Client, Kennel, PATIENCE, SpecExt, cases, client::complaint, eventually, must, sh,
    shell::run_to_end,
};
use std::time::Duration;
use tonic::Code;

cases! {
    fn waits_for_output(Kennel::on_sqlite().await);
    past_and_coming_lines_are_found_with_groups,
    prompt_without_line_end_is_found,
    end_without_match_is_an_answer,
    json_value_is_found_in_megabyte_line,
    malformed_and_huge_patterns_are_refused,
    command_line_waits_over_server_deaths,
}

fn literal(text: &str) -> Pattern {
    Pattern::Literal(text.to_owned())
}

fn regex(text: &str) -> Pattern {
    Pattern::Regex(text.to_owned())
}

async fn found(client: &mut Client, run: &str, pattern: Pattern) -> pb::OutputMatch {
    let answer = must("wait", client.wait_output(run, pattern, 0).await);
    match answer.result {
        Some(Found::Match(found)) => found,
        other => panic!("{other:?}"),
    }
}

// promise: RW-4, RW-4a
async fn past_and_coming_lines_are_found_with_groups(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "echo one; echo port 1 >&2; read x; printf 'listen'; sleep 0.2; echo 'ing on port 8080'; sleep 300";
    let run = must("spawn", client.spawn(sh(script).open_input()).await);
    let run = run.run_id;
    let past = found(&mut client, &run, literal("port")).await;
    assert_eq!(
        (past.stream(), past.line.as_str()),
        (pb::OutputStream::Stderr, "port 1")
    );
    let mut other = kennel.client().await;
    let waiting = {
        let run = run.clone();
        tokio::spawn(async move {
            let pattern = regex(r"^listening on port (?P<port>\d+)$");
            found(&mut other, &run, pattern).await
        })
    };
    must("write", client.write(&run, "1", None, b"go\n").await);
    let coming = must("join", waiting.await);
    assert_eq!(coming.line, "listening on port 8080");
    assert_eq!((coming.offset, coming.attempt), (4, 1));
    assert!(coming.seq > past.seq && !coming.truncated);
    assert_eq!(coming.groups.len(), 1);
    assert_eq!(coming.groups[0].name, "port");
    assert_eq!(coming.groups[0].text, "8080");
    // A search after this seq misses the line.
    let mut late = client.clone();
    let search = late.wait_output(&run, literal("8080"), coming.seq);
    let late = tokio::time::timeout(Duration::from_millis(300), search).await;
    assert!(late.is_err(), "{late:?}");
    must("abort", client.abort(&run).await);
}

// promise: RW-4a
async fn prompt_without_line_end_is_found(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(sh("printf 'login: '; sleep 300")).await,
    );
    let prompt = found(&mut client, &run.run_id, literal("login: ")).await;
    assert!(prompt.truncated, "{prompt:?}");
    assert_eq!(prompt.line, "login: ");
    must("abort", client.abort(&run.run_id).await);
}

// promise: RW-4a
async fn end_without_match_is_an_answer(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must(
        "spawn",
        client.spawn(sh("echo one; sleep 0.3; exit 3")).await,
    );
    let answer = client.wait_output(&run.run_id, literal("two"), 0).await;
    let answer = must("wait", answer);
    assert!(matches!(answer.result, Some(Found::Ended(_))), "{answer:?}");
    assert!(!answer.incomplete);
    // Ended runs are searched too, and the last line needs no newline.
    let run = must("spawn", client.spawn(sh("printf last")).await);
    must("end", client.ended(&run.run_id).await);
    let last = found(&mut client, &run.run_id, regex("^last$")).await;
    assert_eq!(last.line, "last");
}

// promise: RW-5
async fn json_value_is_found_in_megabyte_line(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = r#"echo '{"type":"system","session_id":"no"}'
        printf '{"pad":"'; head -c 2097152 /dev/zero | tr '\0' x; echo '","type":"result","session":{"id":"s\u0041"},"n":[1,{"k":true}]}'"#;
    let run = must("spawn", client.spawn(sh(script)).await);
    let pattern = Pattern::Json(pb::JsonPattern {
        pointer: "/type".into(),
        equals: "\"result\"".into(),
        captures: [
            ("id".into(), "/session/id".into()),
            ("k".into(), "/n/1/k".into()),
            ("none".into(), "/n/9".into()),
        ]
        .into(),
    });
    let request = pb::WaitForOutputRequest {
        run_id: run.run_id,
        pattern: Some(pb::LinePattern {
            pattern: Some(pattern),
        }),
        line_bytes_max: 16 << 20,
        ..pb::WaitForOutputRequest::default()
    };
    let answer = client.process.wait_for_output(request).await;
    let Some(Found::Match(found)) = must("wait", answer).into_inner().result else {
        panic!("it is there");
    };
    assert_eq!(found.text, "\"result\"");
    let groups: Vec<_> = found.groups.iter().map(|g| (&*g.name, &*g.text)).collect();
    assert_eq!(groups, [("id", "sA"), ("k", "true")]);
    assert!(found.truncated && found.line.len() == 64 * 1024);
}

// promise: RW-5
async fn malformed_and_huge_patterns_are_refused(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("sleep 300")).await).run_id;
    let json = |pointer: &str, equals: &str| {
        Pattern::Json(pb::JsonPattern {
            pointer: pointer.into(),
            equals: equals.into(),
            ..pb::JsonPattern::default()
        })
    };
    for (pattern, field) in [
        (regex("("), "pattern.regex"),
        (regex("(?:x{1000}){1000}"), "pattern.regex"),
        (regex(&"x".repeat(1025)), "pattern.regex"),
        (literal(""), "pattern.literal"),
        (json("type", ""), "pattern.json"),
        (json("/type", "result"), "pattern.json"),
    ] {
        let status = client.wait_output(&run, pattern, 0).await;
        let status = status.expect_err("a fault");
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(complaint(&status).fields, [field]);
    }
    must("abort", client.abort(&run).await);
}

/// The wait continues at the next server, which finds the same line.
// promise: RW-6
async fn command_line_waits_over_server_deaths(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "echo first; read x; echo second; exec sleep 300";
    let run = must("spawn", client.spawn(sh(script).open_input()).await).run_id;
    let command = kennel.cli(&["wait-output", &run, "^sec(.*)$"]);
    let waiting = tokio::spawn(run_to_end(command, PATIENCE));
    for _ in 0..2 {
        eventually("a server", PATIENCE, || kennel.server()).await;
        kennel.kill_server();
        client = kennel.client().await;
    }
    must("write", client.write(&run, "1", None, b"go\n").await);
    let output = must("join", waiting.await);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "second\n");
    assert_eq!(output.status.code(), Some(0));

    let code = async |words: &[&str]| {
        let words = [&["wait-output", &run], words].concat();
        let output = run_to_end(kennel.cli(&words), PATIENCE).await;
        output.status.code()
    };
    assert_eq!(code(&["never", "--timeout", "200ms"]).await, Some(124));
    assert_eq!(code(&["-F", "first"]).await, Some(0));
    must("abort", client.abort(&run).await);
    assert_eq!(code(&["never"]).await, Some(3));
}
