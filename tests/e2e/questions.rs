//! Questions of a run: prompts without a line end on pipes and terminals, asked once, answered once, over deaths of the
//! server.

use crate::{
    inactivity::limited,
    play_apart, play_at_once,
    rules::{regex, rule, with},
};
use kennel_proto::pb::{self, Activity, RunState, event::Payload, lifecycle::Station};
use kennel_tests::{
    Client, Heard, Kennel, PATIENCE, SpecExt,
    client::{complaint, fact},
    eventually_async, must, sh,
    shell::run_to_end,
};
use std::{collections::BTreeSet, time::Duration};
use tokio::task::JoinSet;

const PROMPT: &str = r"(?P<question>[A-Z].*(\?|:|\[y/N\]))\s*$";

fn asking(spec: pb::RunSpec) -> pb::RunSpec {
    let action = pb::output_rule::Action::Activity(Activity::AwaitingInput.into());
    with(spec, vec![rule("asks", regex(PROMPT), action)])
}

/// Waits for the questions that the run asks.
async fn asked(client: &mut Client, run_id: &str) -> Vec<pb::Question> {
    asks(client, run_id, |asked| !asked.is_empty()).await
}

pub(crate) async fn asks(
    client: &mut Client,
    run_id: &str,
    are: impl Fn(&[pb::Question]) -> bool,
) -> Vec<pb::Question> {
    let looks = eventually_async("a question", PATIENCE, || {
        let (mut client, are) = (client.clone(), &are);
        async move {
            let run = must("get", client.get(run_id).await);
            assert!(run.end_time.is_none(), "{run:?}");
            Some(run.questions).filter(|asked| are(asked))
        }
    });
    looks.await
}

fn answer(run_id: &str, number: u64, write_id: &str, text: &str) -> pb::WriteInputRequest {
    pb::WriteInputRequest {
        run_id: run_id.to_owned(),
        data: text.as_bytes().to_vec().into(),
        write_id: write_id.to_owned(),
        if_awaiting: Some(number),
        ..pb::WriteInputRequest::default()
    }
}

/// Returns the texts of all questions that the events have, in order.
pub(crate) fn texts(heard: &Heard) -> Vec<String> {
    let questions = heard
        .events
        .iter()
        .filter_map(|(_, payload)| match payload {
            Payload::Lifecycle(pb::Lifecycle {
                station: Some(Station::ActivityChanged(changed)),
            }) => changed.question.clone(),
            _ => None,
        });
    questions.map(|question| question.text).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_asked_and_answered_once() {
    play_apart! {
        questions_wait_for_an_answer,
        questions_outlive_servers,
    };
}

async fn questions_wait_for_an_answer() {
    let kennel = Kennel::on_sqlite().await;
    play_at_once! {
        &kennel;
        prompts_on_a_pipe_are_asked_once,
        hidden_prompt_on_a_terminal_is_answered,
        one_of_ten_answers_is_accepted,
        interrupt_and_other_activity_end_a_question,
        awaiting_run_is_not_inactive,
    };
}

// promise: AS-1
async fn prompts_on_a_pipe_are_asked_once(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "printf 'Working?\\r'; printf 'Your name? '; read n; echo hello $n; \
        printf 'Continue? [y/N] '; read c; echo c=$c";
    let run = must("spawn", client.spawn(asking(sh(script).open_input())).await).run_id;
    let first = asked(&mut client, &run).await;
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!((first[0].number, &*first[0].text), (1, "Your name?"));
    assert_eq!((&*first[0].by, first[0].attempt), ("asks", 1));
    assert!(first[0].since_time.is_some() && !first[0].echo_off);
    let listed = run_to_end(kennel.cli(&["inbox"]), PATIENCE).await;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(text.contains("Your name?") && text.contains(&run), "{text}");
    let answered = run_to_end(kennel.cli(&["answer", &run, "bob"]), PATIENCE).await;
    assert!(answered.status.success(), "{answered:?}");
    let second = asked(&mut client, &run).await;
    assert_eq!((second[0].number, &*second[0].text), (2, "Continue? [y/N]"));
    // WriteInput also answers questions.
    must("write", client.write(&run, "", None, b"y\n").await);
    must("ended", client.ended(&run).await);
    let heard = must("hear", client.hear_all(&run, 0).await);
    assert!(
        heard.text().ends_with("hello bob\nContinue? [y/N] c=y\n"),
        "{heard:?}"
    );
    assert_eq!(texts(&heard), ["Your name?", "Continue? [y/N]"]);
}

// promise: AS-1
async fn hidden_prompt_on_a_terminal_is_answered(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "stty -echo; printf 'Password: '; read p; stty echo; echo; echo got $p";
    let spec = asking(sh(script).on_terminal(pb::Terminal::default()));
    let run = must("spawn", client.spawn(spec).await).run_id;
    let questions = asked(&mut client, &run).await;
    assert_eq!(questions[0].text, "Password:");
    assert!(questions[0].echo_off, "{questions:?}");
    let answered = run_to_end(kennel.cli(&["answer", &run, "secret"]), PATIENCE).await;
    assert!(answered.status.success(), "{answered:?}");
    must("ended", client.ended(&run).await);
    let heard = must("hear", client.hear_all(&run, 0).await);
    assert_eq!(heard.text(), "Password: \r\ngot secret\r\n");
    assert_eq!(texts(&heard), ["Password:"]);
}

// promise: AS-2
async fn one_of_ten_answers_is_accepted(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "printf 'Which?'; read n; sleep 1000";
    let run = must("spawn", client.spawn(asking(sh(script).open_input())).await).run_id;
    asked(&mut client, &run).await;
    let mut answers = JoinSet::new();
    for number in 0..10 {
        let (mut client, run) = (kennel.client().await, run.clone());
        answers.spawn(async move {
            let id = format!("w{number}");
            let request = answer(&run, 1, &id, &format!("{number}\n"));
            (request.clone(), client.process.write_input(request).await)
        });
    }
    let mut accepted = Vec::new();
    while let Some(answered) = answers.join_next().await {
        match answered.expect("it ends") {
            (request, Ok(_)) => accepted.push(request),
            (_, Err(refused)) => {
                assert_eq!(complaint(&refused).reason, "ANSWERED_ALREADY");
                assert!(fact(&refused, "by").starts_with("uid:"), "{refused:?}");
            }
        }
    }
    let [request] = &accepted[..] else {
        panic!("{accepted:?}");
    };
    let again = client.process.write_input(request.clone()).await;
    assert!(must("repeat", again).into_inner().repeated_request);
    let gone = client.process.write_input(answer(&run, 7, "", "x")).await;
    assert_eq!(
        complaint(&gone.expect_err("never asked")).reason,
        "QUESTION_GONE"
    );
    let status = must("status", client.input(&run).await);
    assert_eq!(status.accepted_offset, Some(2));
    must("abort", client.abort(&run).await);
}

// promise: AS-3
async fn interrupt_and_other_activity_end_a_question(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = "trap : INT; printf 'Which?'; while :; do sleep 0.05; done";
    let run = must("spawn", client.spawn(asking(sh(script).open_input())).await).run_id;
    asked(&mut client, &run).await;
    must("interrupt", client.interrupt(&run, "").await);
    let now = must("get", client.get(&run).await);
    assert!(now.questions.is_empty(), "{now:?}");
    assert_eq!(now.activity(), Activity::Working);
    let ask = |text: &str, activity: Activity| pb::AnnotateRunRequest {
        run_id: run.clone(),
        activity: activity.into(),
        question_text: text.to_owned(),
        ..pb::AnnotateRunRequest::default()
    };
    for text in ["one", "two"] {
        let asked = client
            .process
            .annotate_run(ask(text, Activity::AwaitingInput))
            .await;
        must("ask", asked);
    }
    let open = asked(&mut client, &run).await;
    let open: Vec<_> = open.iter().map(|open| (open.number, &*open.text)).collect();
    assert_eq!(open, [(2, "one"), (3, "two")]);
    // An answer ends only its own question.
    must(
        "answer",
        client.process.write_input(answer(&run, 3, "", "x")).await,
    );
    let open = asked(&mut client, &run).await;
    assert_eq!(open.iter().map(|open| open.number).collect::<Vec<_>>(), [2]);
    must(
        "idle",
        client.process.annotate_run(ask("", Activity::Idle)).await,
    );
    assert!(must("get", client.get(&run).await).questions.is_empty());
    let late = client.process.write_input(answer(&run, 2, "", "x")).await;
    assert_eq!(
        complaint(&late.expect_err("it is over")).reason,
        "QUESTION_GONE"
    );
    must("abort", client.abort(&run).await);
}

// promise: AS-4
async fn awaiting_run_is_not_inactive(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let limit = Duration::from_millis(500);
    let script = "printf 'Which?'; read n; sleep 1000";
    let spec = asking(limited(script, limit).open_input());
    let mut counted = spec.clone();
    counted
        .timeouts
        .get_or_insert_default()
        .count_while_awaiting_input = true;
    let run = must("spawn", client.spawn(spec).await).run_id;
    asked(&mut client, &run).await;
    // Only the counted run expires.
    let counted = must("spawn", client.spawn(counted).await).run_id;
    let ended = must("ended", client.ended(&counted).await);
    assert_eq!(ended.state(), RunState::Failed);
    assert_eq!(asked(&mut client, &run).await.len(), 1);
    must(
        "answer",
        client.process.write_input(answer(&run, 1, "", "x\n")).await,
    );
    let ended = must("ended", client.ended(&run).await);
    assert_eq!(ended.state(), RunState::Failed, "its silence counts again");
}

// promise: AS-2
async fn questions_outlive_servers() {
    let kennel = Kennel::on_sqlite().await;
    let script =
        "for i in 1 2 3 4; do printf \"Number $i?\"; read n; echo; echo got $n; done; read n";
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(asking(sh(script).open_input())).await).run_id;
    for number in 1..=4 {
        let mut client = kennel.client().await;
        let is_next = |asked: &[pb::Question]| asked.iter().any(|open| open.number == number);
        let questions = asks(&mut client, &run, is_next).await;
        assert_eq!(questions.len(), 1, "{questions:?}");
        kennel.kill_server();
        let mut client = kennel.client().await;
        assert_eq!(asked(&mut client, &run).await.len(), 1);
        let request = answer(&run, number, &format!("a{number}"), &format!("{number}\n"));
        must("answer", client.process.write_input(request.clone()).await);
        // The repeat simulates a reply lost with the server.
        kennel.kill_server();
        let mut client = kennel.client().await;
        let again = must("repeat", client.process.write_input(request).await);
        assert!(again.into_inner().repeated_request);
    }
    let mut client = kennel.client().await;
    must("close", client.close_input(&run, None).await);
    must("ended", client.ended(&run).await);
    let heard = must("hear", client.hear_all(&run, 0).await);
    let all = texts(&heard);
    let once: BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), once.len()), (4, 4), "{all:?}");
    let expected = (1..=4).map(|n| format!("Number {n}?\ngot {n}\n"));
    assert_eq!(heard.text(), expected.collect::<String>());
}
