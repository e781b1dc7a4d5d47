"""A private classifier in scikit-learn's ways, on the breast-cancer data that scikit-learn brings along.

    python examples/sklearn_classifier.py

The bounds are round numbers for such measurements. For records of your own, take them from a code book or a form: never
from the records.
"""

from __future__ import annotations

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

from adadpigu.integrations.sklearn import AdaDPIGUClassifier

MEAN = [(0, 30), (0, 40), (0, 200), (0, 2500), (0, 0.2), (0, 0.4), (0, 0.5), (0, 0.2), (0, 0.4), (0, 0.1)]
ERROR = [(0, 3), (0, 5), (0, 25), (0, 500), (0, 0.05), (0, 0.2), (0, 0.4), (0, 0.1), (0, 0.1), (0, 0.05)]
WORST = [(0, 40), (0, 50), (0, 250), (0, 4000), (0, 0.25), (0, 1), (0, 1.5), (0, 0.3), (0, 0.7), (0, 0.25)]


def main(epochs: float = 20) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    classifier = AdaDPIGUClassifier(
        classes=[0, 1],
        bounds=[*MEAN, *ERROR, *WORST],
        records=426,  # public: N, of which every draw takes each record with probability B/N
        epsilon=4.0,
        epochs=epochs,
        random_state=0,
    ).fit(X_train, y_train)
    print(f"accuracy {classifier.score(X_test, y_test):.3f} on {len(y_test)} test records")
    print(f"epsilon {classifier.epsilon_:.3f} at delta {classifier.delta_:g}")
    print("\n\n".join(classifier.privacy_.statement().split("\n\n")[:3]))  # the whole of it is a page


if __name__ == "__main__":
    main()
