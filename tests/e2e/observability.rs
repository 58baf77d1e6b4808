//! The files of `deploy/observability`, with a real Prometheus that scrapes a real Kennel.

use crate::{issuer_urls::admitted, net::Net};
use kennel_proto::pb;
use kennel_tests::{
    Client, Options, PATIENCE, argv,
    collector::{Collector, Manner},
    eventually, must, naughty, programs, sh,
    shell::{run_to_end, text},
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

const DASHBOARDS: [&str; 4] = ["fleet", "node", "run", "trust"];

fn shipped(name: &str) -> PathBuf {
    programs::repository()
        .join("deploy/observability")
        .join(name)
}

fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

/// A Prometheus on a port of its own. It ends when this is dropped.
struct Prometheus {
    process: Child,
    port: u16,
    _dir: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Prometheus may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Prometheus {
    /// Starts with the shipped configuration, except the address of Kennel and the scrape interval.
    fn start(target: u16) -> Self {
        let dir = must("a directory", tempfile::tempdir());
        let config = must(
            "the configuration",
            fs::read_to_string(shipped("prometheus.yml")),
        );
        assert!(config.contains("127.0.0.1:9464") && config.contains("15s"));
        let config = config
            .replace("127.0.0.1:9464", &format!("127.0.0.1:{target}"))
            .replace("15s", "200ms");
        must(
            "a copy",
            fs::write(dir.path().join("prometheus.yml"), config),
        );
        must(
            "a copy",
            fs::copy(shipped("alerts.yml"), dir.path().join("alerts.yml")),
        );
        // Prometheus rebinds the port immediately.
        let port = must("a port", TcpListener::bind("127.0.0.1:0"));
        let port = must("its number", port.local_addr()).port();
        let mut command = Command::new(programs::prometheus("prometheus"));
        command
            .arg(format!(
                "--config.file={}",
                dir.path().join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self {
            process: must("a Prometheus", command.spawn()),
            port,
            _dir: dir,
        }
    }

    fn ask(&self, path: &str) -> Option<Value> {
        let answer: Value = serde_json::from_str(&get(self.port, path)?).ok()?;
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    fn query(&self, query: &str) -> Option<Value> {
        let escaped = query.bytes().fold(String::new(), |mut path, byte| {
            let _ = write!(path, "%{byte:02X}");
            path
        });
        self.ask(&format!("/api/v1/query?query={escaped}"))
    }
}

/// Returns the queries of a dashboard, as Grafana would send them.
fn queries(dashboard: &str) -> Vec<String> {
    let file = shipped("dashboards").join(format!("{dashboard}.json"));
    let text = must(dashboard, fs::read_to_string(file));
    let board: Value = must(dashboard, serde_json::from_str(&text));
    let panels = board["panels"].as_array().expect("it has panels");
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .filter_map(|target| target["expr"].as_str());
    let asked = queries.map(|query| {
        query
            .replace("$instance", ".*")
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1h")
    });
    asked.collect()
}

/// Returns all words in it that are Kennel's: names of metrics and of labels.
fn words(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("kennel_") || word.starts_with("rpc_"))
}

/// Returns the names of all served samples, and of their labels.
fn served(port: u16) -> BTreeSet<String> {
    let text = get(port, "/metrics").expect("metrics are served");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut names = BTreeSet::new();
    for sample in samples {
        let Some((name, labels)) = sample.split_once('{') else {
            names.extend(sample.split(' ').next().map(str::to_owned));
            continue;
        };
        names.insert(name.to_owned());
        let labels = labels
            .split(',')
            .filter_map(|label| label.split_once("=\""));
        names.extend(labels.map(|(label, _)| label.to_owned()));
    }
    names
}

async fn something_of_everything(client: &mut Client) {
    let mut ready = sh("echo out; true");
    ready.readiness = Some(Box::new(pb::Readiness {
        probe: Some(pb::readiness::Probe::Line(pb::LinePattern {
            pattern: Some(pb::line_pattern::Pattern::Literal("out".to_owned())),
        })),
        ..pb::Readiness::default()
    }));
    for spec in [ready, sh("exit 3")] {
        let run = must("spawn", client.spawn(spec).await);
        must("end", client.ended(&run.run_id).await);
    }
    let run = must("spawn", client.spawn(naughty(&["mixed-tree"])).await);
    client.hear_up(&run.run_id).await;
    must("abort", client.abort(&run.run_id).await);
    let missing = client.spawn(argv(&["/nonexistent"])).await;
    missing.expect_err("there is no such program");
    // Before a leak check the number of leaks is unknown.
    must("audit", client.audit().await);
}

/// Without it journals have no common limit.
const KEEPING: [&str; 2] = ["--retain-bytes", "20G"];

// promise: M-11
#[tokio::test(flavor = "multi_thread")]
async fn prometheus_accepts_each_rule_dashboard_and_metric_name() {
    let mut check = Command::new(programs::prometheus("promtool"));
    check
        .args(["check", "config"])
        .arg(shipped("prometheus.yml"));
    let checked = run_to_end(check, PATIENCE).await;
    assert!(checked.status.success(), "{}", text(&checked));

    let collector = Collector::start(Manner::Willing).await;
    let net = Net::start_with(Options {
        env: collector.env(),
        words: [&KEEPING[..], &["--metrics-listen", "127.0.0.1:0"]].concat(),
        ..Options::default()
    })
    .await;
    let _issuer = admitted(&net).await;
    let kennel = &net.kennel;
    let port: u16 = eventually("metrics are served", PATIENCE, || {
        let log = kennel.log();
        let (_, address) = log.split_once("serving metrics address=127.0.0.1:")?;
        address.lines().next()?.parse().ok()
    })
    .await;
    let mut client = kennel.client().await;
    something_of_everything(&mut client).await;
    let prometheus = Prometheus::start(port);
    eventually("it has asked twice", PATIENCE, || {
        let asked = prometheus.query("count_over_time(up[1m])")?;
        let asked: f64 = asked["result"][0]["value"][1].as_str()?.parse().ok()?;
        (asked >= 2.0).then_some(())
    })
    .await;

    let names = served(port);
    let rules = prometheus.ask("/api/v1/rules").expect("it has rules");
    let rules = rules["groups"][0]["rules"]
        .as_array()
        .expect("a group")
        .clone();
    assert!(rules.len() >= 12, "{}", rules.len());
    let mut asked = Vec::new();
    for rule in &rules {
        let name = rule["name"].as_str().expect("a name");
        assert_eq!(rule["health"], "ok", "{name}: {rule}");
        // All is well, so no alert fires; this host's disk usage may vary.
        if name != "KennelDiskFilling" {
            assert_eq!(rule["state"], "inactive", "{name}: {rule}");
        }
        asked.push((
            name.to_owned(),
            rule["query"].as_str().expect("a query").to_owned(),
        ));
    }
    for board in DASHBOARDS {
        let of_board = queries(board);
        assert!(of_board.len() >= 7, "{board}: {}", of_board.len());
        asked.extend(of_board.into_iter().map(|query| (board.to_owned(), query)));
    }
    for (whose, query) in &asked {
        assert!(prometheus.query(query).is_some(), "{whose}: {query}");
        for word in words(query) {
            assert!(
                names.contains(word),
                "{whose} names {word}, which no server exports: {query}"
            );
        }
    }
    let started = prometheus
        .query("sum(kennel_run_started_total)")
        .expect("an answer");
    assert_eq!(started["result"][0]["value"][1], "3", "{started}");
}

/// Every metric is in the guide, and every one of the guide is served.
// promise: M-11, RW-61, RW-104
#[tokio::test(flavor = "multi_thread")]
async fn guide_lists_every_served_metric() {
    let collector = Collector::start(Manner::Willing).await;
    let net = Net::start_with(Options {
        env: collector.env(),
        words: KEEPING.to_vec(),
        ..Options::default()
    })
    .await;
    let _issuer = admitted(&net).await;
    let mut client = net.kennel.client().await;
    something_of_everything(&mut client).await;
    let guide = programs::repository().join("docs/guide/reference/telemetry.md");
    let guide = must("the guide", fs::read_to_string(guide));
    let (_, table) = guide.split_once("## Metrics").expect("it has a table");
    let cells = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let listed: BTreeSet<String> = cells
        .flat_map(|cell| cell.split('`'))
        .filter(|word| word.starts_with("kennel.") || word.starts_with("rpc."))
        .map(str::to_owned)
        .collect();
    eventually("all were sent", PATIENCE, || {
        (collector.metric_names() == listed).then_some(())
    })
    .await;
}
