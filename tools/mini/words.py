"""Lists the families draw from."""

NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Ida", "Jonas", "Kate", "Leo", "Maria", "Noah",
    "Olivia", "Paul", "Rosa", "Sam", "Tara", "Tom", "Lena", "Max", "Nina", "Oscar", "Sofia", "Viktor", "Lucy", "Adam",
    "Eva", "Mia",
)  # fmt: skip
SURNAMES = (
    "Berg", "Cole", "Diaz", "Evans", "Fischer", "Gray", "Hall", "Ito", "Jensen", "Klein", "Lopez", "Meyer", "Novak",
    "Olsen", "Park", "Rossi", "Silva", "Tanaka", "Weber", "Young",
)  # fmt: skip
CITIES = (
    "Oslo", "Paris", "Berlin", "Rome", "Madrid", "Vienna", "Lisbon", "Dublin", "Prague", "Athens", "Tokyo", "Cairo",
    "Lima", "Toronto", "Sydney", "Boston", "Chicago", "Denver", "Seattle", "Austin",
)  # fmt: skip
JOBS = (
    "nurse", "teacher", "baker", "pilot", "doctor", "farmer", "lawyer", "painter", "writer", "driver", "cook",
    "engineer", "dentist", "gardener", "musician", "plumber",
)  # fmt: skip
ITEMS = (
    "apples", "pears", "books", "pens", "marbles", "stickers", "coins", "cards", "stamps", "cookies", "shells", "eggs",
    "flowers", "tickets", "buttons", "candles", "cups", "lemons", "photos", "stones",
)  # fmt: skip
BOXES = ("boxes", "bags", "baskets", "shelves", "jars", "crates", "trays", "packs")
ANIMALS = ("fox", "cat", "dog", "owl", "rabbit", "mouse", "bear", "frog", "horse", "duck", "hedgehog", "turtle")
THINGS = (
    "apple", "bread", "candle", "desk", "engine", "flower", "garden", "hammer", "island", "jacket", "kettle", "lamp",
    "mirror", "needle", "orange", "pencil", "quilt", "river", "saddle", "table", "umbrella", "violin", "window",
    "yarn", "zebra", "anchor", "bottle", "castle", "dragon", "eagle", "forest", "guitar", "helmet", "insect",
    "jungle", "kitten", "ladder", "magnet", "napkin", "ocean", "piano", "queen", "rocket", "spoon", "tiger", "valley",
    "wagon", "basket", "carpet", "drum",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "purple", "orange", "grey", "pink", "silver")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki",
    "Poland": "Warsaw", "Austria": "Vienna", "Greece": "Athens", "Hungary": "Budapest", "Japan": "Tokyo",
    "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi", "Peru": "Lima",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Chile": "Santiago", "Cuba": "Havana", "Iceland": "Reykjavik",
    "Belgium": "Brussels", "Switzerland": "Bern", "Turkey": "Ankara", "Brazil": "Brasilia", "Australia": "Canberra",
}  # fmt: skip
