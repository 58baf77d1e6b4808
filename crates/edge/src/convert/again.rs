//! Restart of an ended run: a new run of the spec in its row, with the request's values for the unrecorded ones.

use super::request;
use crate::{convert::trace_context::TraceContext, keys::digest::DigestKey, pb, status};
use kennel_lifecycle::{RecordedSpec, RunId, RunSpec, SecretSource, SecretValue, Violation};
use kennel_supervisor::SpawnCall;
use tonic::Status;

/// Makes the spawn for a Restart of an ended run with this spec.
pub(crate) fn spawn(
    request: pb::RestartRequest,
    ended: RunId,
    recorded: &RecordedSpec,
    owner: String,
    trace: TraceContext,
    key: &DigestKey,
) -> Result<SpawnCall, Status> {
    if !recorded.is_described() {
        return Err(status::spec_incomplete(ended, &["spec".to_owned()]));
    }
    // A run without its complete spec is another run.
    if let Some(unknown) = recorded.unknown() {
        return Err(status::spec_incomplete(ended, &[unknown.to_owned()]));
    }
    let mut found = Vec::new();
    let run = request::optional_run_id(&request.new_run_id, &mut found);
    let (spec, missing) = completed(recorded, request, &mut found);
    status::no_violations(&found)?;
    if !missing.is_empty() {
        return Err(status::spec_incomplete(ended, &missing));
    }
    status::no_violations(&spec.violations())?;
    let call = request::call_of(spec, owner, trace, key);
    Ok(SpawnCall {
        run,
        digest: key.of_again(&call.digest, ended).into(),
        restarted_from: Some(ended),
        ..call
    })
}

/// Returns the spec with a request's values for the unrecorded ones, and those still missing.
fn completed(
    recorded: &RecordedSpec,
    request: pb::RestartRequest,
    found: &mut Vec<Violation>,
) -> (RunSpec, Vec<String>) {
    let mut spec = RunSpec::clone(recorded);
    let mut missing = Vec::new();
    let mut given = request.env;
    let command = &mut spec.command;
    for (name, value) in command.env.iter_mut().chain(&mut command.inherited.env) {
        match given.remove(name) {
            Some(now) => *value = now,
            None => missing.push(format!("env.{name}")),
        }
    }
    found.extend(given.keys().map(|name| {
        let why = "is not a variable of the run's spec";
        Violation::new(format!("env.{name}"), why)
    }));
    let mut sent = request.secrets;
    for secret in &mut spec.secrets {
        if let SecretSource::Sent(value) = &mut secret.source {
            match sent.remove(&secret.name) {
                Some(now) => *value = SecretValue::new(now.into()),
                None => missing.push(format!("secrets.{}", secret.name)),
            }
        }
    }
    found.extend(sent.keys().map(|name| {
        let why = "is not a secret of the run's spec that its caller had sent";
        Violation::new(format!("secrets.{name}"), why)
    }));
    match (&mut spec.command.initial_input, request.initial_input) {
        (Some(input), Some(now)) => *input = now.into(),
        (Some(_), None) => missing.push("initial_input".to_owned()),
        (None, Some(_)) => found.push(Violation::new("initial_input", "the run's spec has none")),
        (None, None) => {}
    }
    (spec, missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;
    use tonic_types::StatusExt;

    const ENDED: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
    const NEW: &str = "01ARZ3NDEKTSV4RRFFQ69G5FAW";

    #[test]
    fn run_again_requires_secret_parts_of_the_spec() {
        let call = again(request(&[("A", "1"), ("B", "2")], Some(b"in"))).expect("a spawn");
        assert_eq!(call.run.map(|run| run.to_string()).as_deref(), Some(NEW));
        assert_eq!(call.restarted_from, Some(ended()));
        let mut env: Vec<_> = call.spec.command.caller_env().collect();
        env.sort();
        let wanted = [("A", "1"), ("B", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(env, wanted.iter().map(|(k, v)| (k, v)).collect::<Vec<_>>());
        assert_eq!(call.spec.command.initial_input.as_deref(), Some(&b"in"[..]));

        let refused = again(request(&[("A", "1")], None)).expect_err("two things are missing");
        let details = refused.get_error_details();
        let info = details.error_info().expect("a reason");
        assert_eq!(info.reason, Reason::SpecIncomplete.as_str());
        assert_eq!(info.metadata["missing"], "env.B,initial_input");

        let refused = again(request(&[("A", "1"), ("B", "2"), ("C", "3")], Some(b"in")));
        let fields = status::violated(&refused.expect_err("one too many"));
        assert_eq!(fields[0], "env.C");
    }

    #[test]
    fn rerun_without_recorded_spec_is_refused() {
        let key = DigestKey::new([7; 32]);
        let refused = spawn(
            request(&[], None),
            ended(),
            &RecordedSpec::default(),
            String::new(),
            TraceContext::default(),
            &key,
        );
        let details = refused
            .expect_err("there is no command")
            .get_error_details();
        assert_eq!(
            details.error_info().expect("a reason").metadata["missing"],
            "spec"
        );
    }

    #[test]
    fn digest_of_run_again_covers_the_original_run() {
        let key = DigestKey::new([7; 32]);
        let whole = || request(&[("A", "1"), ("B", "2")], Some(b"in"));
        let digest = |ended: RunId| {
            let trace = TraceContext::default();
            let call = spawn(
                whole(),
                ended,
                &spec().recorded(),
                String::new(),
                trace,
                &key,
            );
            call.expect("a spawn").digest
        };
        assert_eq!(digest(ended()), digest(ended()));
        assert_ne!(digest(ended()), digest(NEW.parse().expect("an id")));
        assert_ne!(*digest(ended()), key.of_spec(&spec()));
    }

    fn again(request: pb::RestartRequest) -> Result<SpawnCall, Status> {
        let (key, trace) = (DigestKey::new([7; 32]), TraceContext::default());
        spawn(
            request,
            ended(),
            &spec().recorded(),
            "uid:1".to_owned(),
            trace,
            &key,
        )
    }

    fn ended() -> RunId {
        ENDED.parse().expect("an id")
    }

    fn request(env: &[(&str, &str)], input: Option<&'static [u8]>) -> pb::RestartRequest {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pb::RestartRequest {
            run_id: ENDED.to_owned(),
            new_run_id: NEW.to_owned(),
            env: env.iter().map(pair).collect(),
            initial_input: input.map(Into::into),
            ..pb::RestartRequest::default()
        }
    }

    fn spec() -> RunSpec {
        let secret = |name: &str| (name.to_owned(), "hush".to_owned());
        let mut spec = RunSpec::default();
        spec.command.argv = vec!["true".into()];
        spec.command.env = [secret("A")].into();
        spec.command.inherited.env = [secret("B")].into();
        spec.command.initial_input = Some(b"hush".to_vec());
        spec
    }
}
