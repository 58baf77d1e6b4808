//! The caller's W3C trace context (<https://www.w3.org/TR/trace-context/>). What is not valid is left out.

use tonic::metadata::MetadataMap;

/// Longest tracestate that is passed on.
const TRACESTATE_BYTES_MAX: usize = 512;

/// `traceparent` and `tracestate` of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) traceparent: Option<String>,
    pub(crate) tracestate: Option<String>,
}

impl TraceContext {
    pub(crate) fn of(metadata: &MetadataMap) -> Self {
        let mut parents = metadata.get_all("traceparent").iter();
        let parent = match (parents.next(), parents.next()) {
            (Some(only), None) => only.to_str().ok().filter(|p| is_traceparent(p)),
            _ => None,
        };
        let Some(parent) = parent else {
            return Self::default();
        };
        let states: Vec<&str> = metadata
            .get_all("tracestate")
            .iter()
            .filter_map(|s| s.to_str().ok())
            .filter(|s| !s.is_empty())
            .collect();
        let state = states.join(",");
        let usable = !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX;
        Self {
            traceparent: Some(parent.to_owned()),
            tracestate: usable.then_some(state),
        }
    }
}

fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, parent, flags, rest @ ..] = &parts[..] else {
        return false;
    };
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let nonzero = |part: &str| part.bytes().any(|b| b != b'0');
    hex(version, 2)
        && *version != "ff"
        // Later versions may add parts; this one has four.
        && (rest.is_empty() || *version != "00")
        && text.len() <= 256
        && hex(trace, 32)
        && nonzero(trace)
        && hex(parent, 16)
        && nonzero(parent)
        && hex(flags, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_valid_context_is_taken_and_states_are_joined() {
        let mut metadata = MetadataMap::new();
        metadata.insert("traceparent", GOOD.parse().expect("ASCII"));
        metadata.append("tracestate", "a=1".parse().expect("ASCII"));
        metadata.append("tracestate", "b=2".parse().expect("ASCII"));
        let context = TraceContext::of(&metadata);
        assert_eq!(context.traceparent.as_deref(), Some(GOOD));
        assert_eq!(context.tracestate.as_deref(), Some("a=1,b=2"));
    }

    #[test]
    fn an_invalid_parent_is_ignored_with_its_state() {
        for bad in [
            "",
            "00",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("traceparent", bad.parse().expect("ASCII"));
            metadata.insert("tracestate", "a=1".parse().expect("ASCII"));
            assert_eq!(
                TraceContext::of(&metadata),
                TraceContext::default(),
                "{bad}"
            );
        }
    }

    #[test]
    fn two_parents_are_none() {
        let mut metadata = MetadataMap::new();
        metadata.append("traceparent", GOOD.parse().expect("ASCII"));
        metadata.append("traceparent", GOOD.parse().expect("ASCII"));
        assert_eq!(TraceContext::of(&metadata), TraceContext::default());
    }
}
