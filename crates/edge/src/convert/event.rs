//! Events of a run, batched, in the contract's form.

use super::{line, retention, rules, run, terminal, time};
use crate::{
    convert::{certificate, line::output_stream},
    enums::mapped,
    pb::{
        self, event,
        lifecycle::{self, Station},
    },
};
use kennel_lifecycle::{Entry, RuleMatch, RunId, Timestamp};
use kennel_supervisor::{Event, Gap, GapReason, MissingBytes, OutputPart, OutputRead, Payload};

/// Batches events that follow each other in one run's order, one batch for each attempt.
pub(crate) fn batches(run: RunId, events: Vec<Event>, as_json: bool) -> Vec<pb::RunEvents> {
    let mut batches: Vec<(Timestamp, pb::RunEvents)> = Vec::new();
    for event in events {
        if batches
            .last()
            .is_none_or(|(_, batch)| batch.attempt != event.attempt)
        {
            let batch = pb::RunEvents {
                run_id: run.to_string(),
                attempt: event.attempt,
                base_seq: event.seq,
                base_time: Some(time::timestamp(event.at)),
                events: Vec::new(),
            };
            batches.push((event.at, batch));
        }
        let Some((base_time, batch)) = batches.last_mut() else {
            continue;
        };
        batch.events.push(pb::Event {
            seq_delta: event.seq - batch.base_seq,
            time_delta: (event.at != *base_time).then(|| time::between(*base_time, event.at)),
            payload: Some(payload(event.payload, as_json)),
        });
    }
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// Makes a message that is no event of the run, at the reached position.
pub(crate) fn aside(run: RunId, attempt: u32, seq: u64, payload: event::Payload) -> pb::RunEvents {
    pb::RunEvents {
        run_id: run.to_string(),
        attempt,
        base_seq: seq,
        base_time: None,
        events: vec![pb::Event {
            seq_delta: 0,
            time_delta: None,
            payload: Some(payload),
        }],
    }
}

fn payload(payload: Payload, as_json: bool) -> event::Payload {
    match payload {
        Payload::Output {
            stream,
            offset,
            data,
        } => event::Payload::Output(pb::Output {
            stream: output_stream(stream).into(),
            data,
            offset,
        }),
        Payload::Line {
            stream,
            offset,
            text,
            is_cut,
        } => event::Payload::Line(pb::Line {
            stream: output_stream(stream).into(),
            // A truncated line may parse as another value.
            json: (as_json && !is_cut).then(|| line::json(&text)).flatten(),
            text: line::text(text),
            truncated: is_cut,
            offset,
        }),
        Payload::Lifecycle(event) => lifecycle(event),
        Payload::Gap(gap) => event::Payload::Gap(self::gap(&gap)),
    }
}

/// Converts a read of output.
pub(crate) fn output(read: OutputRead) -> pb::ReadOutputResponse {
    use pb::output_part::Part;
    let part = |part| match part {
        OutputPart::Bytes { offset, data } => pb::OutputPart {
            offset,
            part: Some(Part::Data(data)),
        },
        OutputPart::Missing { offset, bytes, why } => pb::OutputPart {
            offset,
            part: Some(match why {
                MissingBytes::NotAsked => Part::OmittedBytes(bytes),
                MissingBytes::Removed => Part::RemovedBytes(bytes),
                MissingBytes::Damaged => Part::DamagedBytes(bytes),
            }),
        },
    };
    pb::ReadOutputResponse {
        parts: read.parts.into_iter().map(part).collect(),
        next_offset: read.next_offset,
        end_offset: read.end_offset,
        r#final: read.is_final,
        output_removed: read.removed.map(retention::removal),
        end_lost: read.end_lost,
    }
}

fn gap(gap: &Gap) -> pb::Gap {
    let missing = |number: u8| {
        let stream = usize::from(number - 1);
        pb::MissingOutput {
            stream: output_stream(number).into(),
            bytes: gap.bytes[stream],
            end_offset: gap.ends[stream],
        }
    };
    pb::Gap {
        first_seq: gap.first_seq,
        last_seq: gap.last_seq,
        missing: vec![missing(1), missing(2)],
        reason: gap_reason(gap.reason).into(),
    }
}

mapped! {
    fn gap_reason(GapReason) -> GapReason
    { HostLost Retention OtherNode, Bound = OutputLimit, FullDisk = DiskFull, Damaged = JournalDamaged }
}

#[expect(clippy::too_many_lines, reason = "a table: one arm for each entry")]
fn lifecycle(entry: Entry) -> event::Payload {
    let station = match entry {
        Entry::Recorded {
            identity,
            output_offsets,
        } => Station::Recorded(lifecycle::Recorded {
            pid: identity.command.pid,
            process_group_id: identity.command.pgid,
            stdout_offset: output_offsets[0],
            stderr_offset: output_offsets[1],
        }),
        Entry::Started => Station::Started(lifecycle::Started {}),
        Entry::Paused => Station::Paused(lifecycle::Paused {}),
        Entry::TerminalResized(size) => Station::TerminalResized(terminal::size(size)),
        Entry::Resumed { reason } => Station::Resumed(lifecycle::Resumed {
            reason: reason.name().to_owned(),
        }),
        Entry::Stopping { order, deadline } => Station::Stopping(lifecycle::Stopping {
            reason: order.reason.name().to_owned(),
            by: order.reason.by().unwrap_or_default().to_owned(),
            deadline_time: Some(time::timestamp(deadline)),
        }),
        Entry::SignalSent {
            signal,
            targets,
            errno,
        } => {
            return event::Payload::SignalSent(pb::SignalSent {
                signal: signal.to_string(),
                targets,
                error_number: errno,
                ..pb::SignalSent::default()
            });
        }
        Entry::StopStep(step) => {
            return event::Payload::SignalSent(certificate::signal_sent(&step));
        }
        Entry::LeaderExited(exit) => Station::LeaderExited(lifecycle::LeaderExited {
            exit: Some(certificate::exit(exit)),
        }),
        Entry::StreamsClosed(how) => Station::StreamsClosed(lifecycle::StreamsClosed {
            how: run::streams(how).into(),
        }),
        Entry::TreeEnded(verdict) => Station::TreeEmpty(lifecycle::TreeEmpty {
            verdict: Some(certificate::tree_verdict(&verdict)),
        }),
        Entry::Stuck(stuck) => Station::Stuck(lifecycle::Stuck {
            verdict: Some(certificate::stuck(&stuck)),
        }),
        Entry::AttemptEnded {
            outcome,
            restarts,
            next,
        } => Station::AttemptEnded(lifecycle::AttemptEnded {
            reason: outcome.reason.name().to_owned(),
            consecutive_restarts: restarts,
            next_restart_time: time::next_restart(next),
        }),
        Entry::Ended(outcome) => Station::Ended(lifecycle::Ended {
            state: run::state(outcome.state()).into(),
            reason: outcome.reason.name().to_owned(),
        }),
        Entry::Annotated {
            version,
            set,
            removed,
            by,
        } => Station::Annotated(lifecycle::Annotated {
            version,
            set,
            removed: removed.into_iter().collect(),
            by,
        }),
        Entry::Ready { attempt, by } => Station::Ready(lifecycle::Ready { attempt, by }),
        Entry::ActivityChanged {
            attempt,
            activity,
            by,
            question,
        } => Station::ActivityChanged(lifecycle::ActivityChanged {
            attempt,
            activity: rules::activity(activity).into(),
            question: question.map(|asked| rules::question(*asked, attempt, by.clone())),
            by,
        }),
        Entry::Answered {
            attempt,
            questions,
            how,
            by,
            ..
        } => Station::Answered(lifecycle::Answered {
            attempt,
            questions,
            how: rules::answered_by(how).into(),
            by,
        }),
        Entry::Extended {
            attempt,
            limit,
            total,
            end,
            by,
        } => Station::Extended(lifecycle::Extended {
            attempt,
            limit: run::deadline(limit).into(),
            total: Some(time::duration(total)),
            end: Some(time::duration(end)),
            by,
        }),
        Entry::StatusChanged { attempt, status } => {
            Station::StatusChanged(lifecycle::StatusChanged {
                attempt,
                status: status.text,
                is_stopping: status.stopping,
            })
        }
        Entry::OutputMatched {
            attempt,
            seq,
            stream,
            offset,
            rules,
        } => Station::OutputMatched(lifecycle::OutputMatched {
            attempt,
            seq,
            stream: output_stream(stream).into(),
            offset,
            rules: rules
                .into_iter()
                .map(|RuleMatch { rule, groups, .. }| lifecycle::RuleMatch { rule, groups })
                .collect(),
        }),
        Entry::RuleSwitchedOff { rule, reason } => {
            let reason = rules::switch_off(reason).into();
            Station::RuleSwitchedOff(lifecycle::RuleSwitchedOff { rule, reason })
        }
        Entry::EventsSummed { events } => Station::EventsSummed(lifecycle::EventsSummed { events }),
        Entry::Warning { .. }
        | Entry::MemoryKills(_)
        | Entry::ProcessSpared { .. }
        | Entry::NoticeRefused { .. } => {
            let message = entry.warning().unwrap_or_default();
            return event::Payload::Warning(pb::Warning { message });
        }
        Entry::Later(_) => return event::Payload::Lifecycle(pb::Lifecycle { station: None }),
    };
    let station = Some(station);
    event::Payload::Lifecycle(pb::Lifecycle { station })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{convert::certificate, pb::tree_verdict};
    use kennel_lifecycle::{
        EndReason, Exit, Leftover, Leftovers, Outcome, Proof, StopCertificate, TreeVerdict,
    };

    #[test]
    fn event_batch_has_base_seq_and_time_deltas() {
        let run = RunId::from_u128(9);
        let events = vec![
            Event {
                seq: 41,
                attempt: 1,
                at: Timestamp(2_000_000),
                payload: Payload::Lifecycle(Entry::Started),
            },
            Event {
                seq: 43,
                attempt: 1,
                at: Timestamp(1_500_000),
                payload: Payload::Output {
                    stream: 2,
                    offset: 7,
                    data: b"x\xff".as_slice().into(),
                },
            },
        ];
        let mut batches = batches(run, events, false);
        let batch = batches.pop().expect("two events");
        assert_eq!(batches, []);
        assert_eq!(batch.run_id, run.to_string());
        assert_eq!((batch.attempt, batch.base_seq), (1, 41));
        let [started, output] = &batch.events[..] else {
            panic!("two events: {batch:?}");
        };
        assert_eq!((started.seq_delta, started.time_delta), (0, None));
        assert_eq!(output.seq_delta, 2);
        let back = prost_types::Duration {
            seconds: 0,
            nanos: -500_000_000,
        };
        assert_eq!(output.time_delta, Some(back));
        let Some(event::Payload::Output(output)) = &output.payload else {
            panic!("output: {output:?}");
        };
        assert_eq!(output.stream(), pb::OutputStream::Stderr);
        assert_eq!((&output.data[..], output.offset), (&b"x\xff"[..], 7));
    }

    #[test]
    fn empty_event_list_makes_no_batch() {
        assert_eq!(batches(RunId::from_u128(9), Vec::new(), false), []);
    }

    // promise: B-8
    #[test]
    fn batch_never_mixes_two_attempts() {
        let event = |seq: u64, attempt: u32| Event {
            seq,
            attempt,
            at: Timestamp(i64::try_from(seq).expect("small")),
            payload: Payload::Lifecycle(Entry::Started),
        };
        let events = vec![event(1, 1), event(2, 1), event(3, 2)];
        let batches = batches(RunId::from_u128(9), events, false);
        let reported: Vec<_> = batches
            .iter()
            .map(|batch| (batch.attempt, batch.base_seq, batch.events.len()))
            .collect();
        assert_eq!(reported, [(1, 1, 2), (2, 3, 1)]);
    }

    #[test]
    fn exit_without_code_or_signal_is_unknown() {
        let of = |code, signal| certificate::exit(Exit::from_parts(code, signal, true));
        assert_eq!(of(Some(3), None).result, Some(pb::exit::Result::Code(3)));
        assert!(!of(Some(3), None).core_dumped);
        assert!(of(None, Some(11)).core_dumped);
        let unknown = Some(pb::exit::Result::Unknown(pb::exit::Unknown {}));
        assert_eq!(of(None, None).result, unknown);
        assert_eq!(of(None, Some(99)).result, unknown);
    }

    #[test]
    fn lifecycle_events_keep_their_details() {
        let tree = lifecycle(Entry::TreeEnded(TreeVerdict::Empty(Proof::CgroupAndEchild)));
        let event::Payload::Lifecycle(pb::Lifecycle {
            station: Some(Station::TreeEmpty(tree)),
        }) = tree
        else {
            panic!("tree_empty: {tree:?}");
        };
        let Some(tree_verdict::Verdict::Empty(empty)) = tree.verdict.and_then(|v| v.verdict) else {
            panic!("empty");
        };
        assert_eq!(empty.proof(), pb::EmptyProof::CgroupAndEchild);

        let left = Leftovers {
            processes: vec![Leftover {
                pid: 7,
                start_ticks: 9,
                name: "daemon".to_owned(),
            }],
            unlisted: 2,
        };
        let kept = lifecycle(Entry::TreeEnded(TreeVerdict::Kept(left.clone())));
        let wanted = lifecycle::TreeEmpty {
            verdict: Some(certificate::tree_verdict(&TreeVerdict::Kept(left))),
        };
        assert_eq!(
            kept,
            event::Payload::Lifecycle(pb::Lifecycle {
                station: Some(Station::TreeEmpty(wanted))
            })
        );

        let ended = lifecycle(Entry::Ended(Box::new(Outcome {
            reason: EndReason::OrphanTerminated,
            exit: Some(Exit::Unknown),
            tree: TreeVerdict::NeverRan,
            streams: None,
            certificate: StopCertificate::default(),
        })));
        let wanted = lifecycle::Ended {
            state: pb::RunState::Lost.into(),
            reason: "orphan_terminated".to_owned(),
        };
        assert_eq!(
            ended,
            event::Payload::Lifecycle(pb::Lifecycle {
                station: Some(Station::Ended(wanted))
            })
        );
    }
}
