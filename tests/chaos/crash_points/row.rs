//! One row: a bystander and a subject; the point is armed, the action is done, and the victim dies.

use super::{
    aftermath::{self, LastAct},
    again,
    followed::Followed,
    input, retain, says,
    service::Service,
    table::{Act, Victim},
    terminal,
};
use kennel_proto::pb::{self, AbortWait};
use kennel_tests::{
    Client, Heard, PATIENCE, SpecExt, complaint, eventually, must, new_run_id, node_log,
    procfs::Proc, sh, sqlite::lock_writes,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    sync::Mutex,
    time::Duration,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

/// Between two tries of a call that was not answered.
const AGAIN: Duration = Duration::from_millis(10);

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) point: &'static str,
    pub(crate) act: Act,
    pub(crate) victim: Victim,
    pub(crate) recovery: pb::RecoveryPolicy,
}

impl Row {
    /// Whether its runs outlive the whole service.
    pub(crate) fn adopts(&self) -> bool {
        self.recovery == pb::RecoveryPolicy::Adopt
    }

    pub(crate) fn name(&self) -> String {
        format!(
            "{}:{}",
            self.point,
            format!("{:?}", self.victim).to_lowercase()
        )
    }
}

/// The files by which a test and its commands know of each other.
pub(crate) struct Files {
    dir: PathBuf,
    recovery: pb::RecoveryPolicy,
}

impl Files {
    /// Returns the file with the ids of runs that have started.
    pub(crate) fn ran(&self) -> PathBuf {
        self.dir.join("ran")
    }

    /// Returns the file with the last line that the bystander has written.
    pub(crate) fn tally(&self) -> PathBuf {
        self.dir.join("tally")
    }

    /// Returns the file with a number that rises while the subject continues.
    pub(crate) fn beat(&self) -> PathBuf {
        self.dir.join("beat")
    }

    /// Returns the file at which the subject exits.
    fn go(&self) -> PathBuf {
        self.dir.join("go")
    }

    fn bystander(&self) -> pb::RunSpec {
        let tally = self.tally();
        self.recovered(sh(&format!(
            "trap 'exit 0' TERM; n=0; while :; do n=$((n + 1)); echo line $n; echo $n > {}; sleep 0.1; done",
            tally.display()
        )))
    }

    fn recovered(&self, mut spec: pb::RunSpec) -> pb::RunSpec {
        spec.set_recovery(self.recovery);
        spec
    }

    fn subject(&self, stubborn: bool) -> pb::RunSpec {
        let trap = if stubborn { "" } else { "echo asked; exit 7" };
        let grace = Duration::from_millis(if stubborn { 200 } else { 5_000 });
        let (ran, beat, go) = (self.ran(), self.beat(), self.go());
        let script = format!(
            "trap '{trap}' TERM; echo $KENNEL_RUN_ID >> {}; echo up; n=0; \
             while [ ! -e {} ]; do n=$((n + 1)); echo $n > {}; sleep 0.05; done; echo bye; exit 5",
            ran.display(),
            go.display(),
            beat.display()
        );
        self.recovered(sh(&script).grace(grace))
    }
}

/// A reader that resumes after each loss of its server.
pub(crate) struct Reader {
    heard: Arc<Mutex<Heard>>,
    task: JoinHandle<()>,
}

impl Reader {
    fn start(socket: PathBuf, run_id: String) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let task = tokio::spawn(read(socket, run_id, Arc::clone(&heard)));
        Self { heard, task }
    }

    fn lines(&self) -> usize {
        self.so_far().text().lines().count()
    }

    fn so_far(&self) -> Heard {
        self.heard.lock().expect("no holder panics").clone()
    }

    /// Returns everything read, when the run has ended.
    pub(crate) async fn finish(self) -> Heard {
        // The reader panics at a non-increasing seq or a hole in the output.
        must("a reader", self.task.await);
        let heard = self.heard.lock().expect("no holder panics");
        heard.clone()
    }
}

async fn read(socket: PathBuf, run_id: String, heard: Arc<Mutex<Heard>>) {
    loop {
        let after = heard.lock().expect("no holder panics").last_seq();
        if let Ok(mut client) = Client::connect(&socket).await
            && let Ok(mut stream) = client.events_after(&run_id, after).await
        {
            while let Ok(Some(message)) = stream.message().await {
                let mut heard = heard.lock().expect("no holder panics");
                heard.take(message);
                if heard.has_ended() {
                    return;
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// All parts of a row.
pub(crate) struct Scene<'a> {
    pub(crate) row: Row,
    pub(crate) service: &'a mut Service,
    pub(crate) files: Files,
    pub(crate) bystander: String,
    pub(crate) subject: String,
    /// The last upgrade before the row.
    pub(crate) upgraded: Option<pb::Upgrade>,
    of_bystander: Option<Reader>,
    of_subject: Option<Reader>,
    /// The subject in a stream of many runs.
    followed: Option<Followed>,
}

pub(crate) async fn play(row: Row, service: &mut Service) {
    if matches!(row.act, Act::Again | Act::ComeBack) {
        return Box::pin(again::play(row, service)).await;
    }
    if row.act == Act::Orphan {
        return Box::pin(super::orphan::play(row, service)).await;
    }
    if row.act == Act::Retain {
        return Box::pin(retain::play(row, service)).await;
    }
    if row.act == Act::Remove {
        return Box::pin(retain::play_removal(row, service)).await;
    }
    if row.act == Act::Terminal {
        return Box::pin(terminal::play(row, service)).await;
    }
    if row.act == Act::Say {
        return Box::pin(says::play(row, service)).await;
    }
    if row.act == Act::Input {
        return Box::pin(input::play(row, service)).await;
    }
    let mut scene = Scene::set(row, service).await;
    let keeper = scene.service.kennel.keeper_pid();
    let last_act = scene.crash().await;
    // A run continues for as long as its keeper lives.
    let survives = row.adopts() || scene.service.kennel.keeper_pid() == keeper;
    Box::pin(aftermath::look(scene, last_act, survives)).await;
}

impl<'a> Scene<'a> {
    async fn set(row: Row, service: &'a mut Service) -> Self {
        let files = Files {
            dir: service.fresh_dir(),
            recovery: row.recovery,
        };
        fs::write(files.ran(), "").expect("a file");
        let kennel = &service.kennel;
        let mut client = kennel.client().await;
        let server = client.server_info().await.expect("it answers");
        let bystander = must("spawn", client.spawn(files.bystander()).await).run_id;
        let of_bystander = Reader::start(kennel.socket(), bystander.clone());
        let subject = new_run_id();
        let is_followed = row.act == Act::Spawn && row.victim == Victim::Server;
        let followed = is_followed.then(|| Followed::start(kennel.socket(), &subject));
        let of_subject = if row.act == Act::Spawn {
            None
        } else {
            let mut spec = files.subject(row.act == Act::Kill);
            if row.act == Act::Extend {
                spec = spec.max_runtime(PATIENCE * 10);
            }
            must("spawn", client.spawn_as(&subject, spec).await);
            client.hear_text(&subject, "up\n").await;
            Some(Reader::start(kennel.socket(), subject.clone()))
        };
        if row.act == Act::Resume {
            must("pause", client.pause(&subject).await);
        }
        eventually("the bystander is read", PATIENCE, || {
            (of_bystander.lines() > 0).then_some(())
        })
        .await;
        Self {
            row,
            service,
            files,
            bystander,
            subject,
            upgraded: server.last_upgrade,
            of_bystander: Some(of_bystander),
            of_subject,
            followed,
        }
    }

    /// Does the action, and returns when the point has fired and a server is back.
    async fn crash(&mut self) -> LastAct {
        // Connect before arming: the bystander may be first to reach the point.
        let client = self.service.kennel.client().await;
        arm(self.service.points(), &self.row);
        let mut last_act = LastAct::default();
        let mut calls = self.act(client).await;
        await_death(self.service.points(), &self.row).await;
        if let Some(call) = calls.take() {
            // The call is answered or loses its connection.
            let answer = must("a call", call.await);
            last_act.0 = answer.is_ok().then_some(self.row.act);
        }
        self.service.kennel.serve_again().await;
        last_act
    }

    async fn act(&mut self, mut client: Client) -> Option<JoinHandle<Result<pb::Run, Status>>> {
        let id = self.subject.clone();
        match self.row.act {
            Act::Spawn => {
                let spec = self.spawned();
                Some(tokio::spawn(async move {
                    client.spawn_as(&id, spec).await.map(|(run, _)| run)
                }))
            }
            Act::Exit => {
                fs::write(self.files.go(), "").expect("a file");
                None
            }
            Act::Owe => {
                let data_dir = self.service.kennel.data_dir();
                let lock = lock_writes(&data_dir.join("kennel.db"));
                let fired = fired(self.service.points(), &self.row);
                fs::write(self.files.go(), "").expect("a file");
                eventually("the end is kept", PATIENCE, || {
                    (node_log::logged(&data_dir).pending > 0 || fired.exists()).then_some(())
                })
                .await;
                drop(lock);
                None
            }
            Act::Abort | Act::Kill => Some(tokio::spawn(async move {
                client.abort_with(&id, None, AbortWait::None).await
            })),
            Act::Pause => Some(tokio::spawn(async move { client.pause(&id).await })),
            Act::Resume => Some(tokio::spawn(async move { client.resume(&id).await })),
            Act::Write
            | Act::Input
            | Act::Say
            | Act::Terminal
            | Act::Again
            | Act::ComeBack
            | Act::Retain
            | Act::Remove
            | Act::Orphan => None,
            Act::Annotate => Some(tokio::spawn(async move {
                client.annotate(&id, &[("a", "1")], &[], Some(0)).await
            })),
            Act::Extend => Some(tokio::spawn(async move {
                client.extend(&id, &[], aftermath::EXTENDED).await
            })),
            Act::Drain => Some(tokio::spawn(async move {
                let drained = client.admin.drain(pb::DrainRequest::default()).await;
                drained.map(|_| pb::Run::default())
            })),
            Act::Upgrade => Some(tokio::spawn(async move {
                let upgraded = client.admin.upgrade(pb::UpgradeRequest::default()).await;
                upgraded.map(|_| pb::Run::default())
            })),
            Act::Restart => {
                self.service.kennel.kill_server();
                None
            }
            Act::Recover | Act::Adopt => {
                self.service.kennel.kill_service_after(|| {});
                self.service.kennel.launch_again().await;
                None
            }
        }
    }

    /// Returns the readers, with the runs that they read.
    pub(crate) fn take_readers(&mut self) -> Vec<(String, Reader)> {
        let of_subject = self.of_subject.take();
        let of_subject = of_subject.map(|reader| (self.subject.clone(), reader));
        let of_bystander = self.of_bystander.take();
        let of_bystander = of_bystander.map(|reader| (self.bystander.clone(), reader));
        of_bystander.into_iter().chain(of_subject).collect()
    }

    /// Returns the reader of the stream of many runs.
    pub(crate) fn take_followed(&mut self) -> Option<Followed> {
        self.followed.take()
    }

    /// Returns the number of lines of the bystander that were read.
    pub(crate) fn lines_read(&self) -> usize {
        self.of_bystander.as_ref().map_or(0, Reader::lines)
    }

    /// Returns the subject of a spawn, with a label by which a stream of many runs finds it.
    fn spawned(&self) -> pb::RunSpec {
        let spec = self.files.subject(false);
        spec.label(Followed::LABEL, &self.subject)
    }

    /// Repeats the subject's own call, under the same key, until a server answers it.
    pub(crate) async fn spawn_again(&self) -> Result<pb::Run, Status> {
        loop {
            let mut client = self.service.kennel.client().await;
            let spec = self.spawned();
            match client.spawn_as(&self.subject, spec).await {
                Ok((run, _)) => return Ok(run),
                Err(status) if is_loss(&status) => tokio::time::sleep(AGAIN).await,
                Err(status) => return Err(status),
            }
        }
    }
}

/// Whether the error only means that no server has answered.
fn is_loss(status: &Status) -> bool {
    status.code() == Code::Unavailable || complaint(status).reason.is_empty()
}

/// Arms the point for the victim of the row.
pub(crate) fn arm(points: &Path, row: &Row) {
    // An earlier row may have left this file.
    let _ = fs::remove_file(fired(points, row));
    let word = format!("{:?}", row.victim).to_lowercase();
    fs::write(points.join("armed"), word).expect("a file");
    fs::rename(points.join("armed"), points.join(row.point)).expect("own directory");
}

/// Waits until the point has fired.
pub(crate) async fn await_death(points: &Path, row: &Row) {
    let fired = fired(points, row);
    let hit = eventually("the point is reached", PATIENCE, || hit(&fired)).await;
    eventually("who is hit dies", PATIENCE, || {
        hit.iter().all(|pid| is_dead(*pid)).then_some(())
    })
    .await;
}

fn fired(points: &Path, row: &Row) -> PathBuf {
    points.join(format!("{}.fired", row.point))
}

/// Returns the victims, once all of them are written.
fn hit(fired: &Path) -> Option<Vec<i32>> {
    let text = fs::read_to_string(fired).ok()?;
    let line = text.strip_suffix('\n')?;
    line.split(' ').map(|pid| pid.parse().ok()).collect()
}

fn is_dead(pid: i32) -> bool {
    Proc::read(pid).is_none_or(|proc| proc.is_zombie() && !proc.has_living_thread())
}
