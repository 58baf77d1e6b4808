//! Destinations of telemetry: OpenTelemetry's variables, and flags for Kennel's own.

use crate::{http::HttpAddress, values};
use clap::Args;
use kennel_cli::Failure;
use kennel_client::Surroundings;
use kennel_supervisor::telemetry::Sampling;
use std::{collections::BTreeSet, time::Duration};

/// Default number of spans that may wait (`OTEL_BSP_MAX_QUEUE_SIZE`).
const SPANS_WAITING_MAX: usize = 2048;
/// Default interval of sending them (`OTEL_BSP_SCHEDULE_DELAY`): a killed server loses those that it has not sent.
const SPANS_EVERY: Duration = Duration::from_secs(1);

/// Default number of log records that may wait (`OTEL_BLRP_MAX_QUEUE_SIZE`).
const RECORDS_WAITING_MAX: usize = 2048;
/// Default interval of sending them (`OTEL_BLRP_SCHEDULE_DELAY`).
const RECORDS_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(crate) struct TelemetryArgs {
    /// Serve metrics to Prometheus at ADDRESS:PORT or unix:PATH, path /metrics, without authentication
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Allow a metrics address that other hosts can reach
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = values::truth)]
    metrics_public: Option<bool>,
    /// Entries of the caller's W3C baggage to pass to commands in BAGGAGE, separated by commas [default: none]
    #[arg(long, value_name = "NAMES")]
    trace_baggage: Option<String>,
}

/// Refuses an address that is open to other hosts unless that is requested.
fn check(address: HttpAddress, public: bool) -> Result<HttpAddress, Failure> {
    if address.is_public() && !public {
        let message =
            format!("metrics at {address} can be read by any client that reaches that address");
        return Err(Failure::new(message).hint(
            "use 127.0.0.1 or unix:PATH, or add --metrics-public where a firewall or network policy guards it",
        ));
    }
    Ok(address)
}

/// Exported signals, and their destinations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TelemetryConfig {
    /// Whether spans go to a collector.
    pub(crate) traces: bool,
    /// Whether metrics go to a collector.
    pub(crate) pushes_metrics: bool,
    /// Whether the log and lifecycle events go to a collector.
    pub(crate) logs: bool,
    /// Address at which metrics are served.
    pub(crate) scraped_at: Option<HttpAddress>,
    pub(crate) sampling: Sampling,
    pub(crate) baggage: BTreeSet<String>,
    pub(crate) spans_waiting_max: usize,
    pub(crate) spans_every: Duration,
    pub(crate) records_waiting_max: usize,
    pub(crate) records_every: Duration,
}

impl TelemetryConfig {
    /// Whether anything is exported.
    pub(crate) fn exports(&self) -> bool {
        self.traces || self.pushes_metrics || self.logs || self.scraped_at.is_some()
    }
}

impl TelemetryArgs {
    /// Returns the configuration in force. Nothing is sent unless a collector is given.
    pub(crate) fn resolve(&self, here: &Surroundings) -> Result<TelemetryConfig, Failure> {
        let disabled = here
            .var("OTEL_SDK_DISABLED")
            .is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let sends = |signal: &str| -> Result<bool, Failure> {
            let exporter = here
                .var(&format!("OTEL_{signal}_EXPORTER"))
                .unwrap_or("otlp");
            match exporter {
                "otlp" => {}
                "none" => return Ok(false),
                other => {
                    return Err(Failure::new(format!(
                        "OTEL_{signal}_EXPORTER={other:?} is neither otlp nor none"
                    )));
                }
            }
            let endpoint = |name: &str| here.var(name).map(|url| (name.to_owned(), url.to_owned()));
            let of_signal = endpoint(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
            let Some((name, url)) = of_signal.or_else(|| endpoint("OTEL_EXPORTER_OTLP_ENDPOINT"))
            else {
                return Ok(false);
            };
            let protocol = here
                .var(&format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"))
                .or(here.var("OTEL_EXPORTER_OTLP_PROTOCOL"));
            check_endpoint(&name, &url, protocol)?;
            Ok(!disabled)
        };
        let baggage = self.trace_baggage.as_deref().unwrap_or_default();
        let baggage = baggage
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let public = self.metrics_public.unwrap_or_default();
        let scraped_at = self
            .metrics_listen
            .as_deref()
            .map(HttpAddress::parse)
            .transpose()?;
        let scraped_at = scraped_at.map(|at| check(at, public)).transpose()?;
        Ok(TelemetryConfig {
            traces: sends("TRACES")?,
            pushes_metrics: sends("METRICS")?,
            logs: sends("LOGS")?,
            scraped_at,
            sampling: sampling(here)?,
            baggage: baggage.map(str::to_owned).collect(),
            spans_waiting_max: number(here, "OTEL_BSP_MAX_QUEUE_SIZE")?
                .unwrap_or(SPANS_WAITING_MAX),
            spans_every: number(here, "OTEL_BSP_SCHEDULE_DELAY")?
                .map_or(SPANS_EVERY, |ms| Duration::from_millis(ms as u64)),
            records_waiting_max: number(here, "OTEL_BLRP_MAX_QUEUE_SIZE")?
                .unwrap_or(RECORDS_WAITING_MAX),
            records_every: number(here, "OTEL_BLRP_SCHEDULE_DELAY")?
                .map_or(RECORDS_EVERY, |ms| Duration::from_millis(ms as u64)),
        })
    }
}

/// Checks an endpoint, which the exporter would only check when it has something to send.
fn check_endpoint(name: &str, url: &str, protocol: Option<&str>) -> Result<(), Failure> {
    let wrong = |why: &str| Err(Failure::new(format!("{name}={url:?} {why}")));
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return wrong("is not a URL that begins with http:// or https://");
    }
    match protocol {
        None | Some("http/protobuf") if url.starts_with("https://") => {
            wrong("needs TLS, which is there with OTEL_EXPORTER_OTLP_PROTOCOL=grpc alone")
        }
        None | Some("http/protobuf" | "grpc") => Ok(()),
        Some(other) => Err(Failure::new(format!(
            "OTEL_EXPORTER_OTLP_PROTOCOL={other:?} is neither grpc nor http/protobuf"
        ))),
    }
}

/// Returns the sampling of `OTEL_TRACES_SAMPLER` and its argument.
fn sampling(here: &Surroundings) -> Result<Sampling, Failure> {
    let name = here
        .var("OTEL_TRACES_SAMPLER")
        .unwrap_or("parentbased_always_on");
    let (obeys_caller, own) = match name.strip_prefix("parentbased_") {
        Some(own) => (true, own),
        None => (false, name),
    };
    let ratio =
        match own {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => {
                let text = here.var("OTEL_TRACES_SAMPLER_ARG").unwrap_or("1.0");
                let ratio: Option<f64> = text.parse().ok();
                ratio
                    .filter(|ratio| (0.0..=1.0).contains(ratio))
                    .ok_or_else(|| {
                        Failure::new(format!(
                            "OTEL_TRACES_SAMPLER_ARG={text:?} is not from 0 to 1"
                        ))
                    })?
            }
            _ => {
                return Err(Failure::new(format!("OTEL_TRACES_SAMPLER={name:?} is not known")).hint(
                "one of always_on, always_off, traceidratio, or one of them after parentbased_",
            ));
            }
        };
    Ok(Sampling {
        obeys_caller,
        ratio,
    })
}

fn number(here: &Surroundings, name: &str) -> Result<Option<usize>, Failure> {
    let number = here.var(name).map(|text| {
        let number = text.parse().ok().filter(|number| *number > 0);
        number.ok_or_else(|| Failure::new(format!("{name}={text:?} is not a number above 0")))
    });
    number.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{ServeArgs, command};

    fn resolve(env: &[(&str, &str)]) -> Result<TelemetryConfig, String> {
        let typed = command().try_get_matches_from(["kennel", "serve"]);
        let typed = typed.expect("no flags");
        let (_, typed) = typed.subcommand().expect("serve");
        let here = Surroundings::of(env);
        let flags = ServeArgs::completed(typed, &here);
        let resolved = flags.and_then(|flags| flags.telemetry.resolve(&here));
        resolved.map_err(|failure| failure.to_string())
    }

    #[test]
    fn telemetry_is_sent_only_to_a_configured_collector() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", all.1);
        let no_traces = ("OTEL_TRACES_EXPORTER", "none");
        let no_logs = ("OTEL_LOGS_EXPORTER", "none");
        let disabled = ("OTEL_SDK_DISABLED", "true");
        for (env, sent) in [
            (&[][..], [false; 3]),
            (&[all], [true; 3]),
            (&[all, no_traces, no_logs], [false, true, false]),
            (&[all, disabled], [false; 3]),
            (&[traces], [true, false, false]),
        ] {
            let config = resolve(env).expect("valid");
            let sends = [config.traces, config.pushes_metrics, config.logs];
            assert_eq!(sends, sent, "{env:?}");
            assert_eq!(config.exports(), sent.contains(&true), "{env:?}");
        }
    }

    // promise: M-10
    #[test]
    fn invalid_telemetry_settings_are_refused() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4317"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("KENNEL_METRICS_LISTEN", "9464"),
            ("KENNEL_METRICS_LISTEN", "unix:metrics.sock"),
        ] {
            let why = resolve(&[(name, value)]).expect_err(name);
            assert!(why.contains(value.trim_start_matches("unix:")), "{why}");
        }
        let sealed = resolve(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ]);
        assert!(sealed.expect_err("there is no TLS").contains("TLS"));
        let ratio = resolve(&[
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ]);
        assert!(ratio.expect_err("more than all").contains("0 to 1"));
    }

    #[test]
    fn public_metrics_address_needs_opt_in() {
        for address in ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464"] {
            let listen = ("KENNEL_METRICS_LISTEN", address);
            let why = resolve(&[listen]).expect_err(address);
            assert!(why.contains(address), "{why}");
            let asked = resolve(&[listen, ("KENNEL_METRICS_PUBLIC", "true")]);
            let at = asked.expect("it was asked for").scraped_at;
            assert!(at.expect("an address").is_public());
        }
        for address in ["127.0.0.1:9464", "[::1]:9464", "unix:/run/m.sock"] {
            resolve(&[("KENNEL_METRICS_LISTEN", address)]).expect("of this host alone");
        }
        let odd = resolve(&[("KENNEL_METRICS_PUBLIC", "yes, please")]);
        odd.expect_err("neither true nor false");
    }

    #[test]
    fn samplers_are_read_by_otel_name() {
        let ratio = resolve(&[
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        let ratio = ratio.expect("valid").sampling;
        assert!(!ratio.obeys_caller && (ratio.ratio - 0.25).abs() < 1e-9);
        let default = resolve(&[]).expect("valid").sampling;
        assert_eq!(default, Sampling::default());
    }
}
