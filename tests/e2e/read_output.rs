//! Output by its offset: of live runs and of ended ones, in parts, from both ends, as plain text.

use kennel_proto::pb::{
    self, OutputStream, OutputView, output_part::Part, read_output_request::Range,
};
use kennel_tests::{
    Client, Kennel, PATIENCE, SpecExt, cases, complaint, must, programs, sh,
    shell::{run_to_end, text},
};
use tonic::Code;

cases! {
    fn reads_of_output(Kennel::on_sqlite().await);
    removed_output_is_counted,
    plain_text_has_no_partial_escape_sequence,
    invalid_request_is_refused_by_its_field,
    logs_show_what_is_asked_of_them,
    pages_are_contiguous_during_and_after_a_run,
}

fn ask(run_id: &str, range: Range) -> pb::ReadOutputRequest {
    pb::ReadOutputRequest {
        run_id: run_id.to_owned(),
        stream: OutputStream::Stdout.into(),
        range: Some(range),
        ..pb::ReadOutputRequest::default()
    }
}

async fn read(client: &mut Client, request: pb::ReadOutputRequest) -> pb::ReadOutputResponse {
    must("read", client.process.read_output(request).await).into_inner()
}

/// Returns the received bytes, and the number of missing ones.
fn bytes_and_gaps(response: &pb::ReadOutputResponse) -> (Vec<u8>, u64, u64) {
    let (mut bytes, mut omitted, mut removed) = (Vec::new(), 0, 0);
    for part in &response.parts {
        match part.part.as_ref().expect("a part that is known") {
            Part::Data(data) => bytes.extend(data),
            Part::OmittedBytes(count) => omitted += count,
            Part::RemovedBytes(count) => removed += count,
            Part::DamagedBytes(count) => panic!("{count} bytes are damaged"),
        }
    }
    (bytes, omitted, removed)
}

// promise: O-16
async fn pages_are_contiguous_during_and_after_a_run(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let go = kennel.scratch().join("go-pages_are");
    let script = format!(
        "seq 100000; echo error >&2; echo up; while [ ! -e '{}' ]; do sleep 0.02; done; echo late",
        go.display()
    );
    let run = must("spawn", client.spawn(sh(&script)).await);
    client.hear_up(&run.run_id).await;
    let numbers = (1..=100_000).fold(String::new(), |all, i| all + &format!("{i}\n"));
    let live = format!("{numbers}up\n");
    let whole = format!("{live}late\n");
    for (wanted, ended) in [(&live, false), (&whole, true)] {
        if ended {
            std::fs::write(&go, "").expect("written");
            must("wait", client.ended(&run.run_id).await);
            kennel.kill_server();
            client = kennel.client().await;
        }
        let (mut offset, mut came) = (0, Vec::new());
        loop {
            let mut request = ask(&run.run_id, Range::Offset(offset));
            request.bytes_max = 70_001;
            let page = read(&mut client, request).await;
            let (bytes, omitted, removed) = bytes_and_gaps(&page);
            assert_eq!((omitted, removed), (0, 0));
            assert!(bytes.len() <= 70_001);
            assert_eq!(page.next_offset, offset + bytes.len() as u64);
            assert_eq!(
                (page.end_offset, page.r#final),
                (wanted.len() as u64, ended)
            );
            came.extend(bytes);
            if page.next_offset == page.end_offset {
                break;
            }
            offset = page.next_offset;
        }
        assert!(came == wanted.as_bytes());
        let ends = pb::HeadTail {
            head_bytes: 4,
            tail_bytes: 5,
        };
        let page = read(&mut client, ask(&run.run_id, Range::HeadTail(ends))).await;
        let (bytes, omitted, _) = bytes_and_gaps(&page);
        let tail = &wanted.as_bytes()[wanted.len() - 5..];
        assert_eq!(bytes, [b"1\n2\n", tail].concat());
        assert_eq!(omitted, wanted.len() as u64 - 9);
    }
    let mut errors = ask(&run.run_id, Range::Offset(0));
    errors.stream = OutputStream::Stderr.into();
    assert_eq!(
        bytes_and_gaps(&read(&mut client, errors).await).0,
        b"error\n"
    );
}

// promise: O-16
async fn removed_output_is_counted(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script = format!("{} bytes 4000000", programs::naughty().display());
    let spec = sh(&script).kept_output(1 << 20, pb::OutputOverflow::HeadTail);
    let run = must("spawn", client.spawn(spec).await);
    must("wait", client.ended(&run.run_id).await);
    let (mut offset, mut came, mut gone) = (0, 0, 0);
    loop {
        let page = read(&mut client, ask(&run.run_id, Range::Offset(offset))).await;
        let (bytes, _, removed) = bytes_and_gaps(&page);
        came += bytes.len() as u64;
        gone += removed;
        offset = page.next_offset;
        if offset == page.end_offset {
            break;
        }
    }
    assert_eq!(came + gone, offset);
    assert!(
        offset >= 4_000_000 && came <= 1 << 20 && gone > 0,
        "{came} came, {gone} are gone"
    );
}

// promise: O-16
async fn plain_text_has_no_partial_escape_sequence(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let script =
        r"printf 'a\033[1;31mred\033[0m\033]0;title\033\\é\tb\007\n'; printf 'open \033]0;never'";
    let run = must("spawn", client.spawn(sh(script)).await);
    must("wait", client.ended(&run.run_id).await);
    for bytes_max in 1..60 {
        let (mut offset, mut text) = (0, Vec::new());
        loop {
            let mut request = ask(&run.run_id, Range::Offset(offset));
            request.bytes_max = bytes_max;
            request.view = OutputView::Text.into();
            let page = read(&mut client, request).await;
            text.extend(bytes_and_gaps(&page).0);
            if page.next_offset == page.end_offset {
                break;
            }
            assert!(page.next_offset > offset, "it continues");
            offset = page.next_offset;
        }
        let text = String::from_utf8(text).expect("UTF-8");
        assert_eq!(text, "ared\u{e9}\tb\nopen ", "{bytes_max} bytes a page");
    }
}

// promise: O-16
async fn invalid_request_is_refused_by_its_field(kennel: &Kennel) {
    let mut client = kennel.client().await;
    let run = must("spawn", client.spawn(sh("echo four")).await);
    must("wait", client.ended(&run.run_id).await);
    let good = ask(&run.run_id, Range::Offset(0));
    let ends = |head_bytes, tail_bytes| {
        Some(Range::HeadTail(pb::HeadTail {
            head_bytes,
            tail_bytes,
        }))
    };
    let mut bad = vec![
        (good.clone(), "stream"),
        (good.clone(), "bytes_max"),
        (good.clone(), "view"),
    ];
    bad[0].0.stream = 0;
    bad[1].0.bytes_max = (1 << 20) + 1;
    bad[2].0.view = OutputView::Lines.into();
    for range in [ends(0, 0), ends(1 << 20, 1)] {
        let mut request = good.clone();
        request.range = range;
        bad.push((request, "head_tail"));
    }
    for (request, field) in bad {
        let refused = client.process.read_output(request).await;
        let complaint = complaint(&refused.expect_err("refused"));
        assert_eq!(
            (complaint.code, complaint.fields),
            (Code::InvalidArgument, vec![field.to_owned()])
        );
    }
    let beyond = client
        .process
        .read_output(ask(&run.run_id, Range::Offset(6)))
        .await;
    let complaint = complaint(&beyond.expect_err("refused"));
    assert_eq!(
        (complaint.code, complaint.reason.as_str()),
        (Code::OutOfRange, "CURSOR_AHEAD")
    );
    let at_end = read(&mut client, ask(&run.run_id, Range::Offset(5))).await;
    assert_eq!(
        (at_end.parts.len(), at_end.next_offset, at_end.r#final),
        (0, 5, true)
    );
}

// promise: O-17
async fn logs_show_what_is_asked_of_them(kennel: &Kennel) {
    let script = r"printf '\033[1mone\033[0m\n'; echo error >&2; echo two; echo three";
    let answer = async |words: &[&str]| {
        let output = run_to_end(kennel.cli(words), PATIENCE).await;
        assert!(output.status.success(), "{words:?}: {output:?}");
        text(&output)
    };
    let id = answer(&["spawn", "--", "sh", "-c", script]).await;
    answer(&["wait", &id]).await;
    for (words, wanted) in [
        (
            &["--stream", "stdout"][..],
            "\u{1b}[1mone\u{1b}[0m\ntwo\nthree",
        ),
        (&["--stream", "stdout", "--plain"], "one\ntwo\nthree"),
        (
            &["--stream", "stdout", "--plain", "--raw"],
            "\u{1b}[1mone\u{1b}[0m\ntwo\nthree",
        ),
        (&["--tail", "1", "-f", "--stream", "stdout"], "three"),
        (
            &["--tail", "2", "--stream", "stdout", "--plain"],
            "two\nthree",
        ),
        (
            &["--since", "1h", "--stream", "stdout", "--plain"],
            "one\ntwo\nthree",
        ),
        (&["--since", "0s"], ""),
        (
            &["--from-seq", "1", "--stream", "stdout", "--plain"],
            "one\ntwo\nthree",
        ),
    ] {
        let all = [&["logs"], words, &[id.as_str()]].concat();
        assert_eq!(answer(&all).await, wanted, "{words:?}");
    }
}
