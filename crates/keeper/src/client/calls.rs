//! The requests of the server to its keeper, and the keeper's answers.

use super::{
    ChildSpec, ClientError, ExtendResult, HeldRun, HelperEnd, InputAnswer, InputResult,
    Interrupted, KEEPER_ANSWER_MAX, KeeperClient, Kernel, LeakScan, Listing, Outputs, Prepared,
    REAPED_MAX, Reaped, Recorded, Resized, SecondLook, Sent, SignalResult, SignalTarget,
    SignalledProcesses, Upgrade, UpgradeRefusal, Victim,
    input::{Asking, CHUNK_BYTES, input_answer},
    link::{self, ask},
};
use crate::{
    audit::{self, Installation},
    wire::{
        Answer, PrepareRequest, ToKeeper, WireExtend, WireListing,
        input::{WireBytes, WireInputRequest},
    },
};
use async_trait::async_trait;
use kennel_lifecycle::{
    CgroupIdentity, Deadline, HostIdentity, InputWrite, ProcessIdentity, RunId, RunIdentity,
    Signal, TerminalSize, Timestamp,
    ladder::StopPlan,
    recovery::{Observation, ProcessPresence},
};
use std::{path::PathBuf, time::Duration};
use tokio::sync::watch;

#[async_trait]
impl Kernel for KeeperClient {
    async fn prepare(&self, run: RunId, spec: &ChildSpec) -> Result<Prepared, ClientError> {
        let files = link::spec_files(spec)?;
        let run_dir = link::text(&spec.run_dir)?;
        let terminal = spec.command.terminal.as_ref().map(|t| t.size);
        let asked = ToKeeper::Prepare(Box::new(PrepareRequest {
            run_dir,
            policy: spec.policy.clone().into(),
            input: spec.command.has_open_input().then_some(spec.attempt),
            terminal,
        }));
        let answered = self
            .link
            .ask_for(Some(run), asked, files, KEEPER_ANSWER_MAX);
        let answered = answered.await;
        // A child whose announcement no task awaits must not wait at its gate for ever.
        let (answer, fds) = answered.inspect_err(|_| self.shut_gate(run))?;
        match answer {
            Answer::Prepared {
                command,
                shim,
                cgroup,
                held,
            } => {
                let Some(outputs) = Outputs::of(terminal.is_some(), fds) else {
                    // Without free descriptors for the output pipes nothing can be read, so the command must not run.
                    self.shut_gate(run);
                    return Err(ClientError::Exhausted("descriptors of the server".into()));
                };
                let identity = RunIdentity {
                    command,
                    shim,
                    cgroup,
                    host: HostIdentity::clone(&self.host),
                };
                Ok(Prepared {
                    identity,
                    outputs,
                    terminal,
                    held,
                })
            }
            Answer::TooWeak(held) => {
                let wanted = spec.policy.min_containment.unwrap_or(held.by);
                Err(ClientError::TooWeak { wanted, held })
            }
            Answer::NoPty(none) => Err(ClientError::NoPty(none)),
            Answer::PrepareFailed(failure) => Err(ClientError::Start(failure)),
            Answer::Exhausted(what) => Err(ClientError::Exhausted(what)),
            _ => Err(ClientError::KeeperGone),
        }
    }

    fn release(&self, run: RunId) {
        self.link.post_of(run, &ToKeeper::Release {});
    }

    fn shut_gate(&self, run: RunId) {
        self.link.post_of(run, &ToKeeper::ShutGate {});
    }

    fn stop(&self, run: RunId, plan: &StopPlan) {
        let plan = plan.clone();
        self.link.post_of(run, &ToKeeper::Stop { plan });
    }

    fn keep_rest(&self, run: RunId) {
        self.link.post_of(run, &ToKeeper::KeepRest {});
    }

    async fn interrupt(
        &self,
        run: RunId,
        request_id: Option<&str>,
    ) -> Result<Interrupted, ClientError> {
        let request = request_id.map(str::to_owned);
        let asked = ToKeeper::Interrupt { request };
        let (result, way) = ask!(
            self.link.ask(Some(run), asked),
            Answer::Interrupted(way) => (SignalResult::Done, Some(way)),
            Answer::SentBefore {} => (SignalResult::Done, None),
            Answer::Signal(result) => (result, None)
        )?;
        Ok(Interrupted { result, way })
    }

    async fn resize(
        &self,
        run: RunId,
        attempt: u32,
        size: TerminalSize,
    ) -> Result<Resized, ClientError> {
        let asked = ToKeeper::Resize { attempt, size };
        ask!(
            self.link.ask(Some(run), asked),
            Answer::NoTerminal {} => Resized::NoTerminal,
            Answer::OtherAttempt {} => Resized::OtherAttempt,
            Answer::Signal(SignalResult::Done) => Resized::Done,
            Answer::Signal(SignalResult::Failed(errno)) => Resized::Failed(errno),
            Answer::Signal(_) => Resized::Gone
        )
    }

    async fn extend(
        &self,
        run: RunId,
        limits: &[Deadline],
        time: Duration,
        by: &str,
    ) -> Result<ExtendResult, ClientError> {
        let (limits, by) = (limits.to_vec(), by.to_owned());
        let asked = ToKeeper::Extend(WireExtend { limits, time, by });
        ask!(
            self.link.ask(Some(run), asked),
            Answer::Extended(result) => result,
            Answer::Signal(_) => ExtendResult::Gone
        )
    }

    async fn signal(
        &self,
        run: RunId,
        signal: Signal,
        target: SignalTarget,
        request_id: Option<&str>,
    ) -> Result<Sent, ClientError> {
        let request = request_id.map(str::to_owned);
        let asked = ToKeeper::Signal {
            signal,
            target,
            request,
        };
        ask!(
            self.link.ask(Some(run), asked),
            Answer::Signalled(each) => Sent::Now(each),
            Answer::SentBefore {} => Sent::Before,
            // The keeper has no such run: there is no process to signal.
            Answer::Signal(_) => Sent::Now(SignalledProcesses::default())
        )
    }

    async fn help(
        &self,
        run: RunId,
        argv: &[String],
        timeout: Duration,
    ) -> Result<HelperEnd, ClientError> {
        let argv = argv.to_vec();
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let asked = ToKeeper::Help { argv, timeout_ms };
        let wait = KEEPER_ANSWER_MAX.saturating_add(timeout);
        ask!(
            self.link.ask_for(Some(run), asked, Vec::new(), wait),
            Answer::Helped(end) => end,
            Answer::Signal(_) => HelperEnd::Refused
        )
    }

    async fn was_sent(&self, run: RunId, request_id: &str) -> Result<bool, ClientError> {
        let request = request_id.to_owned();
        let asked = ToKeeper::WasSent { request };
        ask!(
            self.link.ask(Some(run), asked),
            Answer::SentBefore {} => true,
            Answer::NotSent {} | Answer::Signal(_) => false
        )
    }

    async fn write_input(
        &self,
        run: RunId,
        attempt: u32,
        write: &InputWrite,
        data: &[u8],
    ) -> Result<InputAnswer, ClientError> {
        let mut at = 0;
        let mut repeated_first = None;
        let mut write = write.clone();
        loop {
            let end = data.len().min(at + CHUNK_BYTES);
            let chunk = WireBytes(data[at..end].to_vec());
            let (of, from) = (write.clone(), at as u64);
            let request = WireInputRequest::Write {
                attempt,
                write: of,
                at: from,
                data: chunk,
            };
            let asked = ToKeeper::Input { request };
            let asking = Asking {
                link: &self.link,
                run,
                seq: None,
            };
            let answer = asking.ask(asked).await?;
            let InputAnswer::Result(state, InputResult::Taken { start, repeated }) = answer else {
                return Ok(answer);
            };
            let repeated = *repeated_first.get_or_insert(repeated);
            // Repeats from here on must name this offset.
            write.offset = Some(start);
            let taken = usize::try_from(state.accepted.saturating_sub(start)).unwrap_or(usize::MAX);
            if taken >= data.len() {
                return Ok(InputAnswer::Result(
                    state,
                    InputResult::Taken { start, repeated },
                ));
            }
            at = taken;
        }
    }

    async fn close_input(
        &self,
        run: RunId,
        attempt: u32,
        offset: Option<u64>,
    ) -> Result<InputAnswer, ClientError> {
        let request = WireInputRequest::Close { attempt, offset };
        let asked = ToKeeper::Input { request };
        Ok(input_answer(&self.link.ask(Some(run), asked).await?.0))
    }

    async fn input_state(&self, run: RunId, attempt: u32) -> Result<InputAnswer, ClientError> {
        let request = WireInputRequest::State { attempt };
        let asked = ToKeeper::Input { request };
        Ok(input_answer(&self.link.ask(Some(run), asked).await?.0))
    }

    async fn tree(&self, run: RunId) -> Result<Listing, ClientError> {
        let list = || async {
            ask!(
                self.link.ask(Some(run), ToKeeper::Tree {}),
                Answer::Listed(listing) => listing,
                Answer::Signal(_) => WireListing::default()
            )
        };
        self.lists.read(run, list).await
    }

    async fn upgrade(
        &self,
        request_id: Option<&str>,
    ) -> Result<Result<Upgrade, UpgradeRefusal>, ClientError> {
        let request = request_id.map(str::to_owned);
        let asked = ToKeeper::Upgrade { request };
        ask!(self.link.ask(None, asked), Answer::Upgrade(result) => result)
    }

    async fn pause(&self, run: RunId) -> Result<SignalResult, ClientError> {
        self.ask_signal(run, ToKeeper::Pause {}).await
    }

    async fn resume(&self, run: RunId) -> Result<SignalResult, ClientError> {
        self.ask_signal(run, ToKeeper::Resume {}).await
    }

    fn acknowledge(&self, run: RunId) {
        self.link.post_of(run, &ToKeeper::Acknowledge {});
    }

    async fn observe(&self, recorded: &Recorded) -> Result<Observation, ClientError> {
        let Recorded {
            run,
            identity,
            run_dir,
        } = sendable(recorded)?;
        let asked = ToKeeper::Observe { identity, run_dir };
        self.observation(run, asked, KEEPER_ANSWER_MAX).await
    }

    async fn end_orphan(
        &self,
        recorded: &Recorded,
        plan: &StopPlan,
    ) -> Result<Observation, ClientError> {
        let Recorded {
            run,
            identity,
            run_dir,
        } = sendable(recorded)?;
        let asked = ToKeeper::EndOrphan {
            identity,
            run_dir,
            plan: plan.clone(),
        };
        let wait = KEEPER_ANSWER_MAX.saturating_add(plan.kill_after);
        self.observation(run, asked, wait).await
    }

    fn take_held(&self, run: RunId) -> Option<HeldRun> {
        self.link.state.lock().held.remove(&run)
    }

    fn unresponsive(&self) -> watch::Receiver<Option<Timestamp>> {
        self.link.liveness.unresponsive()
    }

    async fn keeper_seen(
        &self,
        keeper: ProcessIdentity,
        host: HostIdentity,
    ) -> Result<ProcessPresence, ClientError> {
        let asked = ToKeeper::KeeperSeen { keeper, host };
        ask!(self.link.ask(None, asked), Answer::Seen(seen) => seen)
    }

    async fn audit(
        &self,
        installation: Installation,
        data_dir: PathBuf,
    ) -> Result<LeakScan, ClientError> {
        let looking = tokio::task::spawn_blocking(move || {
            let scan = audit::scan(&installation);
            scan.map(|scan| (scan, audit::belongings(&data_dir, installation.keeper)))
        });
        let looked = looking.await.map_err(|_| ClientError::KeeperGone)?;
        let (scan, belongings) = looked.map_err(|e| ClientError::Exhausted(e.to_string()))?;
        Ok(LeakScan {
            scan,
            inventory: self.inventory().await?,
            belongings,
        })
    }

    async fn look_again(
        &self,
        processes: Vec<ProcessIdentity>,
        directories: Vec<(RunId, CgroupIdentity)>,
    ) -> Result<SecondLook, ClientError> {
        let looking = tokio::task::spawn_blocking(move || {
            (audit::describe(&processes), audit::still_empty(directories))
        });
        let (processes, directories) = looking.await.map_err(|_| ClientError::KeeperGone)?;
        Ok(SecondLook {
            processes,
            directories,
            inventory: self.inventory().await?,
        })
    }

    async fn reap(
        &self,
        victims: &[Victim],
        directories: &[CgroupIdentity],
        plan: &StopPlan,
    ) -> Result<Reaped, ClientError> {
        let victims = victims.iter().take(REAPED_MAX).cloned().collect();
        let directories = directories.iter().take(REAPED_MAX).cloned().collect();
        let wait = KEEPER_ANSWER_MAX.saturating_add(plan.kill_after);
        let asked = ToKeeper::Reap {
            plan: plan.clone(),
            victims,
            directories,
        };
        ask!(
            self.link.ask_for(None, asked, Vec::new(), wait),
            Answer::Reaped(reaped) => reaped
        )
    }
}

/// Copies a recorded run for a message, where its path can be part of one.
fn sendable(recorded: &Recorded) -> Result<Recorded, ClientError> {
    link::text(&recorded.run_dir).map(|_| recorded.clone())
}
