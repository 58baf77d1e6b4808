//! Secrets of a spec, both ways: what is read has no values.

use crate::{
    enums::parsed,
    pb::{self, secret::Source},
};
use kennel_lifecycle::{Secret, SecretDelivery, SecretSource, SecretValue, Violation};

parsed! {
    fn delivery(SecretDelivery) -> SecretDelivery, fn shown_delivery
    { Unspecified | Variable => Variable, File }
}

pub(crate) fn parse(secrets: Vec<pb::Secret>, found: &mut Vec<Violation>) -> Vec<Secret> {
    let secrets = secrets.into_iter().enumerate().filter_map(|(at, secret)| {
        let field = format!("spec.secrets[{at}]");
        let by = format!("{field}.delivery");
        let delivery = delivery(&by, secret.delivery, found);
        let source = match secret.source {
            Some(Source::Value(value)) => SecretSource::Sent(SecretValue::new(value.into())),
            Some(Source::ServerFile(path)) => SecretSource::ServerFile(path),
            Some(Source::Credential(name)) => SecretSource::Credential(name),
            None => {
                let why = "must have one of `value`, `server_file`, `credential`";
                found.push(Violation::new(field, why));
                return None;
            }
        };
        Some(Secret {
            name: secret.name,
            source,
            delivery,
            trim_newline: secret.trim_newline,
        })
    });
    secrets.collect()
}

pub(crate) fn shown(secrets: &[Secret]) -> Vec<pb::Secret> {
    let secrets = secrets.iter().map(|secret| pb::Secret {
        name: secret.name.clone(),
        source: Some(match &secret.source {
            SecretSource::Sent(_) => Source::Value(bytes::Bytes::new()),
            SecretSource::ServerFile(path) => Source::ServerFile(path.clone()),
            SecretSource::Credential(name) => Source::Credential(name.clone()),
        }),
        delivery: shown_delivery(secret.delivery).into(),
        trim_newline: secret.trim_newline,
    });
    secrets.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(source: Option<Source>, delivery: i32) -> pb::Secret {
        pb::Secret {
            name: "A".to_owned(),
            source,
            delivery,
            trim_newline: delivery == 0,
        }
    }

    // promise: RW-91
    #[test]
    fn secret_value_is_omitted_from_shown_spec() {
        let file = pb::SecretDelivery::File.into();
        let named = [
            secret(Some(Source::ServerFile("db".to_owned())), file),
            secret(Some(Source::Credential("db".to_owned())), 0),
        ];
        let mut found = Vec::new();
        let back = shown(&parse(named.to_vec(), &mut found));
        assert_eq!(back, named);
        let sent = secret(Some(Source::Value(b"hush".to_vec().into())), 0);
        assert!(!format!("{sent:?}").contains("hush"), "{sent:?}");
        let back = shown(&parse(vec![sent], &mut found));
        let empty = secret(Some(Source::Value(bytes::Bytes::new())), 0);
        assert_eq!(back, [empty]);
        assert_eq!(found, []);
        parse(vec![secret(None, 9)], &mut found);
        let fields: Vec<_> = found.iter().map(|wrong| &*wrong.field).collect();
        assert_eq!(fields, ["spec.secrets[0].delivery", "spec.secrets[0]"]);
    }
}
